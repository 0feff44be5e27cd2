"""
Routes with their description: what is served is what ``/openapi.json`` tells, by construction.

A view takes what its route's variables are called, and reads its body and query as the types that
its operation names.
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
    """What a key may do."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, as a client sees it."""

    id: str
    method: str
    path: str  # with Flask's variables: /books/<id:item_id>
    summary: str
    tag: str
    answers: Mapping[HTTPStatus, Any]  # the type of the body, None without one
    scope: Scope | None = None  # None: no key is asked for
    description: str = ""
    id_name: str = "id"  # what the path's item_id is called in the document
    id_type: Any = Id  # of all variables
    query: Any = None
    body: Any = None
    takes_patch: bool = False  # a merge patch of the body's type
    takes_token: bool = False  # of the operators, who have no key
    is_once: bool = False  # takes Idempotency-Key
    has_version: bool = False  # answers ETag, takes If-Match or If-None-Match
    is_list: bool = False  # answers Link, or lines of JSON
    errors: frozenset[HTTPStatus] = field(default_factory=frozenset)  # beside those of all

    @property
    def variables(self) -> list[str]:
        """What the path's variables are called in the document."""
        return [self._called(name) for name in VARIABLE.findall(self.path)]

    @property
    def template(self) -> str:
        """The path as the document has it: /books/{id}."""
        return VARIABLE.sub(lambda found: f"{{{self._called(found[1])}}}", self.path)

    def _called(self, variable: str) -> str:
        return self.id_name if variable == "item_id" else variable


class Routes:
    """
    Adds operations to an application, each guarded by what its scope asks for.

    An application that *is_open* asks nobody for a key, and its document says so.
    """

    def __init__(
        self, app: Flask, guard: Callable[[Scope, View], View], *, is_open: bool = False
    ) -> None:
        self._app = app
        self._guard = guard
        self.is_open = is_open
        self.operations: list[Operation] = []

    def add(self, operation: Operation, view: View) -> None:
        """Serve *operation* by *view*."""
        if operation.scope is not None:
            view = self._guard(operation.scope, view)
        if any(operation.answers.values()):
            view = accept.requiring_json(view, is_list=operation.is_list)
        self._app.add_url_rule(operation.path, operation.id, view, methods=[operation.method])
        self.operations.append(operation)
