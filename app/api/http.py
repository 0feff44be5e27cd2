"""Read bodies and query strings as the records' types, and write JSON responses."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from flask import Request, Response, request
from gunicorn.http.errors import ParseException
from msgspec import Struct
from werkzeug.exceptions import RequestEntityTooLarge, UnsupportedMediaType

from app.api import faults
from app.errors import Fault, InvalidRequest, MalformedRequest
from greenline.flask import environ, json_response

__all__ = ["body", "environ", "json", "nothing", "parsed", "query"]

T = TypeVar("T")
S = TypeVar("S", bound=Struct)


def body(type_: type[T]) -> T:
    """
    Return the request's JSON body as *type_*.

    :raises MalformedRequest: it is not JSON.
    :raises InvalidRequest: it does not have the type; the error lists every fault.
    """
    asked = request._get_current_object()  # type: ignore[attr-defined] # each use of the proxy costs
    if not asked.is_json:
        raise UnsupportedMediaType("the body must be application/json")
    sent = _sent(asked)
    try:
        return msgspec.json.decode(sent, type=type_)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise _invalid(sent, type_) from error


def _invalid(sent: bytes, type_: Any) -> InvalidRequest | MalformedRequest:
    """Return the error for a body that is no *type_*."""
    # Decoded again, as any JSON: msgspec reports a wrong type before it reaches a syntax error, and
    # a body that is not JSON is 400, not 422.
    try:
        return InvalidRequest(faults=faults.found(msgspec.json.decode(sent), type_))
    except RecursionError:
        return InvalidRequest(faults=[Fault("the body is nested too deeply", pointer="")])
    except msgspec.ValidationError:
        return InvalidRequest(faults=[Fault("there is a number beyond all limits", pointer="")])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return MalformedRequest(f"the body is not JSON: {error}")


def _sent(asked: Request) -> bytes:
    """
    Return the body of *asked*.

    :raises MalformedRequest: its framing is broken.
    :raises RequestEntityTooLarge: it is longer than MAX_CONTENT_LENGTH.
    """
    try:
        sent = asked.get_data(cache=False)
    except ParseException as error:
        raise MalformedRequest(f"the body cannot be read: {error}") from error
    # Werkzeug truncates a chunked body at the limit without an error.
    if asked.content_length is None:
        max_bytes = asked.max_content_length
        if max_bytes is not None and len(sent) >= max_bytes:
            raise RequestEntityTooLarge
    return sent


def query(type_: type[S]) -> S:
    """
    Return the request's query string as *type_*.

    :raises InvalidRequest: unknown or repeated names, or wrong values; it lists every fault.
    """
    return parsed(environ()["QUERY_STRING"], type_)


def parsed(text: str, type_: type[S]) -> S:
    """
    Return a query string as a Struct, as :func:`query` does.

    :param text: the query string.
    :param type_: the Struct.
    :raises InvalidRequest: as :func:`query`.
    """
    if not text:
        return msgspec.convert({}, type_)
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRequest("the query string is not UTF-8") from error
    given = dict(pairs)
    if len(given) == len(pairs):
        try:
            asked = msgspec.convert(given, type_, strict=False)
        except msgspec.ValidationError:
            pass
        else:
            # msgspec reads "null" as None, which would drop the filter: a DELETE would then delete
            # more than was asked for.
            fields = zip(type_.__struct_encode_fields__, type_.__struct_fields__, strict=True)
            nulls = [
                name for name, field in fields if name in given and getattr(asked, field) is None
            ]
            if not nulls:
                return asked
            raise InvalidRequest(
                faults=[Fault(f"{name} cannot be null", name=name) for name in nulls]
            )
    counts = Counter(name for name, _ in pairs)
    repeated = [name for name, count in counts.items() if count > 1]
    wrong = [Fault(f"{name} is given more than once", name=name) for name in repeated]
    raise InvalidRequest(faults=[*wrong, *faults.found_in_query(given, type_)])


def json(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """
    Return a JSON response.

    :param value: anything that msgspec encodes; bytes are JSON already and are not changed.
    :param status: HTTP status, int. Default 200.
    :param headers: names and values of further headers. Default none.
    """
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return json_response(body, status, headers)


def nothing() -> Response:
    """Return a 204 response."""
    response = Response(status=204)
    # Flask adds text/html; there is no content to describe.
    del response.headers["Content-Type"]
    return response
