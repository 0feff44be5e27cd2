"""What comes in and goes out as JSON, checked against the records' types."""

from collections import Counter
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from flask import Response, request
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
    Return the request's body as *type_*.

    Raises:
        MalformedRequest: it is not JSON.
        InvalidRequest: it is JSON of another shape; lists every fault.
    """
    if not request.is_json:
        raise UnsupportedMediaType("the body must be application/json")
    sent = _sent()
    try:
        return msgspec.json.decode(sent, type=type_)
    except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors
        raise _refusal(sent, type_) from error


def _refusal(sent: bytes, type_: Any) -> InvalidRequest | MalformedRequest:
    """Return what is wrong with *sent*: a type may be refused before its text turns out broken."""
    try:
        return InvalidRequest(faults=faults.found(msgspec.json.decode(sent), type_))
    except RecursionError:
        return InvalidRequest(faults=[Fault("the body is nested too deeply", pointer="")])
    except msgspec.ValidationError:
        return InvalidRequest(faults=[Fault("there is a number beyond all limits", pointer="")])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return MalformedRequest(f"the body is not JSON: {error}")


def _sent() -> bytes:
    """Return the body; Werkzeug cuts a chunked one at the limit without a word."""
    try:
        sent = request.get_data(cache=False)
    except ParseException as error:
        raise MalformedRequest(f"the body cannot be read: {error}") from error
    most = request.max_content_length
    if request.content_length is None and most is not None and len(sent) >= most:
        raise RequestEntityTooLarge
    return sent


def query(type_: type[S]) -> S:
    """
    Return the request's query string as *type_*; each name may stand once.

    Raises:
        InvalidRequest: unknown names, repeated ones, values of another type: every one of them.
    """
    return parsed(environ()["QUERY_STRING"], type_)


def parsed(text: str, type_: type[S]) -> S:
    """Return the query string *text* as *type_*, as :func:`query` does."""
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
            # msgspec takes "null" for None, which would be a filter that is not there.
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


def json(value: Any, status: int = 200) -> Response:
    """Answer with *value*; bytes are JSON already and are passed on as they are."""
    if isinstance(value, bytes):
        return json_response(value, status)
    return json_response(msgspec.json.encode(value), status)


def nothing() -> Response:
    """Answer 204."""
    response = Response(status=204)
    del response.headers["Content-Type"]
    return response
