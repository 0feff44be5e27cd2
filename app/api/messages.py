"""What comes in and goes out as JSON, checked against the records' types."""

import re
from typing import Any, TypeVar

import msgspec
from flask import Response, request
from werkzeug.exceptions import RequestEntityTooLarge, UnsupportedMediaType

from app.errors import InvalidRequest, MalformedRequest
from greenline.flask import json_response

T = TypeVar("T")


def body(type_: type[T]) -> T:
    """
    Return the request's body as *type_*.

    Raises:
        MalformedRequest: it is not JSON.
        InvalidRequest: it is JSON of another shape; names the place.
    """
    if not request.is_json:
        raise UnsupportedMediaType("the body must be application/json")
    try:
        return msgspec.json.decode(_sent(), type=type_)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"the body is not JSON: {error}") from error


def _sent() -> bytes:
    """Return the body; Werkzeug cuts a chunked one at the limit without a word."""
    sent = request.get_data(cache=False)
    most = request.max_content_length
    if request.content_length is None and most is not None and len(sent) >= most:
        raise RequestEntityTooLarge
    return sent


def query(type_: type[T]) -> T:
    """
    Return the query string as *type_*; each name may stand once.

    Raises:
        InvalidRequest: an unknown name, a repeated one, or a value of another type.
    """
    repeated = [name for name, values in request.args.lists() if len(values) > 1]
    if repeated:
        raise InvalidRequest(f"{repeated[0]} is given more than once")
    try:
        return msgspec.convert(request.args.to_dict(), type_, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error


def json(value: Any, status: int = 200) -> Response:
    """Answer with *value*; text is JSON already and is passed on as it is."""
    if isinstance(value, str):
        return json_response(value.encode(), status)
    return json_response(msgspec.json.encode(value, enc_hook=_plain), status)


def _plain(value: object) -> int:
    """Return a driver's own kind of whole number as one of Python's."""
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"a {type(value).__name__} is not for JSON")


def nothing() -> Response:
    """Answer 204."""
    response = Response(status=204)
    del response.headers["Content-Type"]
    return response


def _invalid(error: msgspec.ValidationError) -> InvalidRequest:
    """Turn msgspec's ``... - at `$.authors[0]``` into a message and a JSON pointer (RFC 6901)."""
    message, _, path = str(error).partition(" - at `$")
    steps = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", path.rstrip("`"))
    pointer = "".join(f"/{name or index}" for name, index in steps)
    return InvalidRequest(message, pointer=pointer)
