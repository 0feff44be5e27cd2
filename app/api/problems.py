"""
Answer errors with problem documents (RFC 9457), by one table of HTTP statuses.

The status of an error is defined here and in no other module.
"""

import logging
from http import HTTPStatus

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from app import errors as app_errors
from app.api import request_id
from greenline import errors

log = logging.getLogger(__name__)

STATUS: dict[type[errors.GreenlineError], HTTPStatus] = {
    app_errors.MalformedRequest: HTTPStatus.BAD_REQUEST,
    app_errors.InvalidRequest: HTTPStatus.UNPROCESSABLE_ENTITY,
    app_errors.IdempotencyKeyReused: HTTPStatus.UNPROCESSABLE_ENTITY,
    app_errors.IdempotencyKeyInProgress: HTTPStatus.CONFLICT,
    app_errors.PreconditionFailed: HTTPStatus.PRECONDITION_FAILED,
    app_errors.Unauthorized: HTTPStatus.UNAUTHORIZED,
    app_errors.InvalidToken: HTTPStatus.UNAUTHORIZED,
    app_errors.Forbidden: HTTPStatus.FORBIDDEN,
    app_errors.TooManyRequests: HTTPStatus.TOO_MANY_REQUESTS,
    app_errors.NotFound: HTTPStatus.NOT_FOUND,
    app_errors.SchemaBehind: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Conflict: HTTPStatus.CONFLICT,
    errors.PoolTimeout: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.PoolClosed: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.TooManyWaiting: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Overloaded: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.SerializationFailure: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreDown: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ConnectionLost: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.DeadlineExceeded: HTTPStatus.GATEWAY_TIMEOUT,
    errors.ClientGone: HTTPStatus.REQUEST_TIMEOUT,  # only seen in the log
    errors.NestedConnection: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.OutcomeUnknown: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.StoreError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.LatePatching: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.ConfigError: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def register(app: Flask) -> None:
    """Answer every error of *app* with a problem document."""
    # Flask chooses the handler of the closest base class of an error.
    app.register_error_handler(errors.GreenlineError, _ours)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)


def _ours(error: errors.GreenlineError) -> Response:
    status = STATUS.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    # The stack of a lost answer is kept: an operator may have to find out what was written.
    if isinstance(error, errors.OutcomeUnknown):
        log.error("request %s", request_id.current(), exc_info=error)
    elif status == HTTPStatus.INTERNAL_SERVER_ERROR:
        # Also for an error class that the table lacks.
        return _unexpected(error)
    more: dict[str, object] = {}
    if isinstance(error, errors.Conflict) and error.constraint:
        more["constraint"] = error.constraint
    if isinstance(error, app_errors.InvalidRequest) and error.faults:
        more["errors"] = [_fault(fault) for fault in error.faults]
    if isinstance(error, app_errors.NotFound) and error.missing:
        more["missing"] = error.missing
    if isinstance(error, errors.DeadlineExceeded):
        more["spent_ms"] = {what: round(s * 1000) for what, s in error.spent_s.items()}
    detail = str(error)
    if isinstance(error, errors.StoreDown):
        # The reason names hosts and roles, which are for the log and not for clients.
        log.warning("request %s: %s", request_id.current(), error)
        detail = str(errors.StoreDown())
    response = problem(status, detail, error.code, **more)
    if isinstance(
        error, errors.Unavailable | app_errors.TooManyRequests | app_errors.IdempotencyKeyInProgress
    ):
        response.headers["Retry-After"] = str(error.retry_after_s)
    challenge = _challenge(error)
    if challenge is not None:
        response.headers["WWW-Authenticate"] = challenge
    return response


def _challenge(error: errors.GreenlineError) -> str | None:
    """Return the WWW-Authenticate header of *error* (RFC 6750), None if it has none."""
    if isinstance(error, app_errors.Unauthorized):
        return "Bearer"
    if isinstance(error, app_errors.InvalidToken):
        return 'Bearer error="invalid_token"'
    if isinstance(error, app_errors.Forbidden):
        return f'Bearer error="insufficient_scope", scope="{error.scope}"'
    return None


def _fault(fault: app_errors.Fault) -> dict[str, str]:
    """Return *fault* without its empty fields."""
    place = {"pointer": fault.pointer, "name": fault.name}
    return {"detail": fault.detail} | {k: v for k, v in place.items() if v is not None}


def _http(error: HTTPException) -> Response | HTTPException:
    """Answer an error of Werkzeug: no route, another method, a body that is too large."""
    if error.code is None or error.code < 400:
        return error  # a redirect is a complete response
    status = HTTPStatus(error.code)
    detail = error.description or status.description
    if status == HTTPStatus.NOT_FOUND:
        detail = str(app_errors.NotFound())
    elif status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        detail = f"the body is larger than {request.max_content_length} bytes"
    response = problem(status, detail, status.name.lower())
    # Allow of a 405, for example.
    for name, value in error.get_headers(request.environ):
        if name.lower() not in ("content-type", "content-length"):
            response.headers[name] = value
    return response


def _unexpected(error: Exception) -> Response:
    # No detail for the client: the message of an unexpected error may contain data.
    log.error("request %s failed", request_id.current(), exc_info=error)
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return problem(
        status,
        "an internal error occurred; the log of the service has the details",
        "internal_error",
    )


def problem(status: HTTPStatus, detail: str, code: str, **more: object) -> Response:
    """
    Return a response with a problem document.

    :param status: HTTP status.
    :param detail: text for people.
    :param code: stable code for programs.
    :param more: further fields of the document.
    """
    document = {
        "type": "about:blank",
        "title": status.phrase,
        "status": int(status),
        "detail": detail,
        "code": code,
        "request_id": request_id.current(),
        **more,
    }
    return Response(
        msgspec.json.encode(document), status=status, mimetype="application/problem+json"
    )
