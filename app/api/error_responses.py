"""The error responses of an operation, as the OpenAPI document lists them."""

from http import HTTPStatus

from msgspec import UNSET, Struct, UnsetType

from app.api.operations import Operation, Scope

WHY = {
    HTTPStatus.BAD_REQUEST: "The request is malformed; the body is no JSON.",
    HTTPStatus.UNAUTHORIZED: "The key is missing, unknown, expired or revoked.",
    HTTPStatus.FORBIDDEN: "The key's scope does not allow this.",
    HTTPStatus.NOT_FOUND: "There is no such item; of a batch, `missing` lists the ids.",
    HTTPStatus.NOT_ACCEPTABLE: "The Accept header does not allow JSON.",
    HTTPStatus.CONFLICT: "It conflicts with stored data, or the first try is still in progress.",
    HTTPStatus.PRECONDITION_FAILED: "The item has another version.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
    HTTPStatus.REQUEST_URI_TOO_LONG: "The URL is too long; the response is no problem document.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The Content-Type of the body is not JSON.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "The request is invalid; `errors` lists every fault.",
    HTTPStatus.TOO_MANY_REQUESTS: "The rate limit of the key is exceeded.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "The write may be stored, or not: `outcome_unknown`.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Overloaded, or a database cannot be reached; try again.",
    HTTPStatus.GATEWAY_TIMEOUT: "The request exceeded its time limit.",
}
KEPT_HEADERS = {
    HTTPStatus.UNAUTHORIZED: ["WWW-Authenticate"],
    HTTPStatus.CONFLICT: ["Retry-After"],
    HTTPStatus.TOO_MANY_REQUESTS: ["Retry-After"],
    HTTPStatus.SERVICE_UNAVAILABLE: ["Retry-After"],
}
# The worker refuses these before the application runs, without a problem document.
BEFORE_US = {HTTPStatus.REQUEST_URI_TOO_LONG}


class ProblemFault(Struct, forbid_unknown_fields=True):
    """One thing that is wrong: at a JSON pointer into the body, or in a parameter of this name."""

    detail: str
    pointer: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


class Problem(Struct, forbid_unknown_fields=True):
    """Why a request was not done."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str | UnsetType = UNSET
    errors: list[ProblemFault] | UnsetType = UNSET
    missing: list[int | str] | UnsetType = UNSET
    constraint: str | UnsetType = UNSET
    spent_ms: dict[str, int] | UnsetType = UNSET


def of(operation: Operation, *, is_open: bool) -> set[HTTPStatus]:
    """
    Return the error statuses of an operation.

    :param operation: its description.
    :param is_open: no key is required, bool.
    """
    found = set(operation.errors)
    if operation.takes_token or (operation.scope is not None and not is_open):
        found.add(HTTPStatus.UNAUTHORIZED)
    if operation.scope is not None:
        if not is_open:
            found.add(HTTPStatus.FORBIDDEN)
        found |= {
            HTTPStatus.TOO_MANY_REQUESTS,
            HTTPStatus.SERVICE_UNAVAILABLE,
            HTTPStatus.GATEWAY_TIMEOUT,
        }
        # A read by POST (batch-get) is no write.
        if operation.method != "GET" and operation.scope != Scope.READ:
            # Documented for writes only: the answer of the database may be lost.
            found.add(HTTPStatus.INTERNAL_SERVER_ERROR)
    if any(operation.answers.values()):
        found.add(HTTPStatus.NOT_ACCEPTABLE)
    if "<" in operation.path:
        found.add(HTTPStatus.NOT_FOUND)
    if operation.body is not None:
        found |= {
            HTTPStatus.BAD_REQUEST,
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            HTTPStatus.UNPROCESSABLE_ENTITY,
        }
    if operation.query is not None:
        found |= {HTTPStatus.REQUEST_URI_TOO_LONG, HTTPStatus.UNPROCESSABLE_ENTITY}
    if operation.is_idempotent:
        found |= {HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}
    if operation.has_version and operation.method in ("PUT", "PATCH", "DELETE"):
        found.add(HTTPStatus.PRECONDITION_FAILED)
    return found - set(operation.answers)
