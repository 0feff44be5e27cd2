"""``/keys``: API keys, for admins. A key's token is shown once, when it is created or rotated."""

from datetime import datetime
from http import HTTPStatus

from flask import Response
from msgspec import Struct

from app.api import http, versions
from app.api.operations import Operation, Routes, Scope
from app.api.resource import Resource
from app.errors import InvalidRequest
from app.records import Id, Key, KeyInput, Name, NewKey, Rotation
from app.store.keys import Keys


class KeyFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields by which keys can be filtered."""

    name: Name | None = None


def resource(keys: Keys) -> Resource[KeyInput]:
    """Describe the resource; *keys* is its repository."""
    return Resource(
        name="keys",
        noun="key",
        repository=keys,
        input=KeyInput,
        item=Key,
        made=NewKey,
        filters=KeyFilters,
        orders={"id": int, "name": str, "created_at": datetime, "updated_at": datetime},
        id_type=Id,
        converter="id",
        by_name=keys,
        read=Scope.ADMIN,
        write=Scope.ADMIN,
        is_idempotent=False,  # a stored answer would contain the token
    )


def add_rotate(routes: Routes, keys: Keys) -> None:
    """
    Add ``POST /keys/{id}/rotate``, an operation that only keys have.

    :param routes: receives it.
    :param keys: the repository.
    """

    def rotate(item_id: int) -> Response:
        # The first answer would have to be stored with the token, of which only a hash is kept.
        if "HTTP_IDEMPOTENCY_KEY" in http.environ():
            raise InvalidRequest("a key is shown once: it cannot be made with an Idempotency-Key")
        return versions.answer(keys.rotate(item_id, http.body(Rotation).overlap_s))

    operation = Operation(
        "keys.rotate",
        "POST",
        "/keys/<id:item_id>/rotate",
        "Give a key another token; the one before works until the overlap ends",
        "keys",
        {HTTPStatus.OK: NewKey},
        Scope.ADMIN,
        body=Rotation,
        errors=frozenset([HTTPStatus.NOT_FOUND]),
    )
    routes.add(operation, rotate)
