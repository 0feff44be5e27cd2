"""
Add routes together with their description, from which ``/openapi.json`` is made.

A view takes the variables of its route by name, and reads its body and its query string as the
types that its operation names.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from flask import Flask, Response

from app.api import accept
from app.records import Id

View = Callable[..., Response]
MERGE_PATCH = "application/merge-patch+json"
VARIABLE = re.compile(r"<\w+:(\w+)>")


class Scope(StrEnum):
    """The right that an operation requires of a key."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Operation:
    """
    The description of one method of one path.

    :param id: the operationId in the document, str.
    :param method: the HTTP method, str.
    :param path: with Flask's variables, such as ``/books/<id:item_id>``, str.
    :param summary: one line, str.
    :param tag: the group in the document, str.
    :param answers: the type of the body by status; None for no body.
    :param scope: the right that is required of the key. Default None: no key is required.
    :param description: Markdown, str. Default empty.
    :param id_name: the name of the path's ``item_id`` in the document, str. Default ``id``.
    :param id_type: the type of all variables of the path. Default ``Id``.
    :param query: the Struct of the query string. Default None.
    :param body: the type of the body. Default None.
    :param takes_patch: the body is a merge patch of its type, bool. Default False.
    :param takes_token: OPS_TOKEN is required, bool. Default False.
    :param is_idempotent: ``Idempotency-Key`` is accepted, bool. Default False.
    :param has_version: answers with ``ETag``, accepts ``If-Match`` or ``If-None-Match``, bool.
        Default False.
    :param is_list: answers with ``Link``, or with lines of JSON, bool. Default False.
    :param errors: statuses besides those of ``error_responses.of()``. Default none.
    """

    id: str
    method: str
    path: str
    summary: str
    tag: str
    answers: Mapping[HTTPStatus, Any]
    scope: Scope | None = None
    description: str = ""
    id_name: str = "id"
    id_type: Any = Id
    query: Any = None
    body: Any = None
    takes_patch: bool = False
    takes_token: bool = False
    is_idempotent: bool = False
    has_version: bool = False
    is_list: bool = False
    errors: frozenset[HTTPStatus] = field(default_factory=frozenset)

    @property
    def variables(self) -> list[str]:
        """The names of the path's variables in the document."""
        return [self._called(name) for name in VARIABLE.findall(self.path)]

    @property
    def template(self) -> str:
        """The path as in the document: /books/{id}."""
        return VARIABLE.sub(lambda found: f"{{{self._called(found[1])}}}", self.path)

    def _called(self, variable: str) -> str:
        return self.id_name if variable == "item_id" else variable


class Routes:
    """
    Add operations to an application, each with the guard that its scope requires.

    :param app: the application.
    :param guard: returns a view that requires a scope.
    :param is_open: no key is required, which the document says, bool. Default False.
    """

    def __init__(
        self, app: Flask, guard: Callable[[Scope, View], View], *, is_open: bool = False
    ) -> None:
        self._app = app
        self._guard = guard
        self.is_open = is_open
        self.operations: list[Operation] = []

    def add(self, operation: Operation, view: View) -> None:
        """
        Add a route.

        :param operation: its description.
        :param view: returns the response.
        """
        if operation.scope is not None:
            view = self._guard(operation.scope, view)
        # Outside of the guard: Accept is checked before a key is looked up.
        if any(operation.answers.values()):
            view = accept.requiring_json(view, is_list=operation.is_list)
        self._app.add_url_rule(operation.path, operation.id, view, methods=[operation.method])
        self.operations.append(operation)
