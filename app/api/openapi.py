"""
``/openapi.json`` (OpenAPI 3.1), made of the operations that are served and the types they name.

The types that describe the fields are those that check them. Each operation lists the error
statuses that it can answer, and no others.
"""

from collections.abc import Sequence
from hashlib import sha256
from http import HTTPStatus
from typing import Any

import msgspec
from flask import Response, request

from app.api import error_responses, http, schemas
from app.api.accept import JSON, LINES, PROBLEM
from app.api.operations import MERGE_PATCH, Operation, Routes
from app.api.schemas import Schemas, reference

Document = dict[str, Any]

ABOUT = """\
Each resource has the same operations: one item is created, read, replaced, changed by a merge
patch (RFC 7396) and deleted; a batch of 1 to 1,000 of them is written as a whole or not at all.

Lists are read page by page: `next` and `previous` of an answer are the cursors for `after` and
`before`, and its Link header has them as addresses. With `Accept: application/x-ndjson` a list
comes whole, an item a line. Items have versions: `If-Match` with an ETag is refused if the item
has changed. A POST with an `Idempotency-Key` can be sent again.

Errors are problem documents (RFC 9457); `code` is for programs.
"""

IDEMPOTENCY_KEY = {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"}
TAG = {"type": "string"}
LINE_SCHEMA = {"type": "string", "description": "A line of JSON for each item of the list."}
RESPONSE_HEADERS: dict[str, Document] = {
    "ETag": {
        "description": "Its version, quoted; by name with the id before.",
        "required": True,
        "schema": TAG,
    },
    "Location": {"description": "The item's path.", "required": True, "schema": TAG},
    "Link": {"description": "The pages around this one (RFC 8288).", "schema": TAG},
    "Retry-After": {
        "description": "In how many seconds to try again.",
        "schema": {"type": "integer"},
    },
    "WWW-Authenticate": {
        "description": "How to authenticate.",
        "required": True,
        "schema": TAG,
    },
}
SECURITY = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key."},
    "token": {"type": "http", "scheme": "bearer", "description": "The operators' token."},
}


def add(routes: Routes) -> None:
    """Add the route, after all others, and build the document, which has its operation as well."""

    def answer() -> Response:
        # Revalidated with its ETag at each use: the document changes with a release.
        response = http.json(text)
        response.set_etag(tag)
        response.headers["Cache-Control"] = "no-cache"
        response.make_conditional(request)
        return response

    operation = Operation(
        "openapi",
        "GET",
        "/openapi.json",
        "Read this document",
        "ops",
        {HTTPStatus.OK: dict[str, Any]},
        has_version=True,
    )
    routes.add(operation, answer)
    # Not at the first request: it takes up to half a second, which would block the hub.
    text = msgspec.json.encode(document(routes.operations, is_open=routes.is_open))
    tag = sha256(text).hexdigest()[:32]


def document(operations: Sequence[Operation], *, is_open: bool = False) -> Document:
    """
    Return the OpenAPI document.

    :param operations: those that are served.
    :param is_open: no key is required, bool. Default False.
    """
    known = Schemas()
    # The errors refer to this component by name.
    known.of(error_responses.Problem)
    paths: dict[str, Document] = {}
    statuses: set[HTTPStatus] = set()
    schemes: set[str] = set()
    for operation in operations:
        errors = error_responses.of(operation, is_open=is_open)
        statuses |= errors
        methods = paths.setdefault(operation.template, {})
        one = methods[operation.method.lower()] = _operation(operation, known, errors)
        if operation.scope is not None and not is_open:
            one["security"] = [{"key": [operation.scope]}]
            schemes.add("key")
        elif operation.takes_token:
            one["security"] = [{"token": []}]
            schemes.add("token")
    return {
        "openapi": "3.1.1",
        "info": {"title": "Greenline", "version": "1", "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(one.tag for one in operations)],
        "paths": paths,
        "components": {
            "schemas": known.components,
            "headers": RESPONSE_HEADERS,
            "responses": {_name(status): _error_response(status) for status in sorted(statuses)},
            "securitySchemes": {name: SECURITY[name] for name in sorted(schemes)},
        },
    }


def _operation(operation: Operation, known: Schemas, errors: set[HTTPStatus]) -> Document:
    described: Document = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": _parameters(operation, known),
        "responses": _answers(operation, known)
        | {str(int(status)): _to("responses", _name(status)) for status in sorted(errors)},
    }
    if operation.description:
        described["description"] = operation.description
    # RFC 7396 has a media type of its own; plain JSON is accepted as well.
    if operation.takes_patch:
        patch = {"schema": known.patch_of(operation.body)}
        described["requestBody"] = {"required": True, "content": {MERGE_PATCH: patch, JSON: patch}}
    elif operation.body is not None:
        sent = {"schema": known.of(operation.body)}
        described["requestBody"] = {"required": True, "content": {JSON: sent}}
    return described


def _parameters(operation: Operation, known: Schemas) -> list[Document]:
    parameters: list[Document] = []
    for name in operation.variables:
        schema = known.of(operation.id_type)
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    if operation.query is not None:
        parameters += schemas.parameters(operation.query)
    headers = []
    if operation.is_idempotent:
        headers.append(
            ("Idempotency-Key", IDEMPOTENCY_KEY, "Makes the request safe to send again.")
        )
    if operation.has_version and operation.method == "GET":
        headers.append(("If-None-Match", TAG, "Answer 304 when this ETag is still right."))
    # A new item has no version yet that a condition could name.
    elif operation.has_version and operation.method != "POST":
        headers.append(("If-Match", TAG, "Do it only when this ETag is still right."))
    for name, schema, description in headers:
        parameters.append(
            {"name": name, "in": "header", "schema": schema, "description": description}
        )
    return parameters


def _answers(operation: Operation, known: Schemas) -> Document:
    names = []
    if operation.has_version and operation.method != "DELETE":
        names.append("ETag")
    if operation.is_list:
        names.append("Link")
    answers: Document = {}
    for status, type_ in operation.answers.items():
        # Only one new item has a location, and those have an ETag; a batch has neither.
        more = ["Location"] if status == HTTPStatus.CREATED and operation.has_version else []
        answer: Document = {"description": status.phrase}
        if type_ is not None:
            answer["content"] = {JSON: {"schema": known.of(type_)}}
            if operation.is_list:
                answer["content"][LINES] = {"schema": LINE_SCHEMA}
        if names or more:
            answer["headers"] = {name: _to("headers", name) for name in (*names, *more)}
        answers[str(int(status))] = answer
    if operation.has_version and operation.method == "GET":
        unchanged = HTTPStatus.NOT_MODIFIED
        answers[str(int(unchanged))] = {
            "description": unchanged.phrase,
            "headers": {"ETag": _to("headers", "ETag")},
        }
    return answers


def _error_response(status: HTTPStatus) -> Document:
    described: Document = {"description": error_responses.WHY[status]}
    if status not in error_responses.BEFORE_US:
        described["content"] = {PROBLEM: {"schema": reference(error_responses.Problem.__name__)}}
    if status in error_responses.KEPT_HEADERS:
        described["headers"] = {
            name: _to("headers", name) for name in error_responses.KEPT_HEADERS[status]
        }
    return described


def _name(status: HTTPStatus) -> str:
    return status.phrase.title().replace(" ", "")


def _to(kind: str, name: str) -> Document:
    return {"$ref": f"#/components/{kind}/{name}"}
