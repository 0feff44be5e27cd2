"""
Ordinary responses, made and sent without the detours for the others.

1. A factory does what the class's constructor does for an ordinary body, and is compared with it
   first: for a class with a constructor of its own, or a Werkzeug with another idea of a response,
   it does not work and is not asked.
2. Only a response that Werkzeug would send unchanged is sent directly: one body of bytes, a
   content length, no location, no status without a body, not HEAD, no method overridden.
"""

from collections.abc import Callable, Iterable
from typing import Any

import flask
from werkzeug.datastructures import Headers
from werkzeug.sansio.response import Response as SansIOResponse
from werkzeug.wrappers import Response

# What decides how a response is made, and how it is sent.
MAKING = ("__init__", "__new__", "__setattr__", "set_data", "_clean_status", "status")
SENDING = (
    "__call__", "close", "get_app_iter", "get_wsgi_headers", "get_wsgi_response", "is_sequence",
    "iter_encoded", "status", "status_code",
)  # fmt: skip

new: Callable[[type[Any]], Any] = object.__new__


class ResponseFactory:
    """Makes the responses of one class and mimetype (None is the class's own)."""

    def __init__(self, response_class: type[Any], mimetype: str | None) -> None:
        self.response_class = response_class
        self.mimetype = mimetype
        self.works = False
        if _inherits(response_class, MAKING):
            sample = response_class(b"x", mimetype=mimetype)
            self._status, self._status_code = sample._status, sample._status_code
            self._content_type = sample.headers[0]
            self.works = _alike(self(b"x"), sample)

    def __call__(self, body: bytes) -> Any:
        """Return a new response with *body*; only where it ``works``."""
        response = new(self.response_class)
        response.headers = headers = new(Headers)
        headers._list = [self._content_type, ("Content-Length", str(len(body)))]
        response._status = self._status
        response._status_code = self._status_code
        response.direct_passthrough = False
        response._on_close = []
        response.response = [body]
        return response


def json_response(body: bytes, status: int = 200) -> flask.Response:
    """Return a response whose *body* is JSON already."""
    if not _json.works:
        return flask.Response(body, status, mimetype="application/json")
    response: flask.Response = _json(body)
    if status != 200:
        response.status_code = status
    return response


def _alike(one: Any, other: Any) -> bool:
    """Return whether two responses have the same state."""
    mine, its = dict(vars(one)), dict(vars(other))
    headers = vars(mine.pop("headers")), vars(its.pop("headers"))
    return mine == its and headers[0] == headers[1]


class Body(list[bytes]):
    """A body for the server, which closes the response when it has sent it."""

    __slots__ = ("close",)

    close: Callable[[], None]


def sends_plainly(response_class: type[Any]) -> bool:
    """Return whether the class leaves the sending to Werkzeug."""
    return _inherits(response_class, SENDING)


def send(
    response: Response, environ: dict[str, Any], start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """Do what calling *response*, whose class sends plainly, does."""
    chunks = response.response
    code = response._status_code
    if (
        type(chunks) is list
        and len(chunks) == 1
        and type(chunks[0]) is bytes
        and (200 <= code < 300 or code >= 400)
        and code != 204
        and not response.direct_passthrough
        and environ["REQUEST_METHOD"] != "HEAD"
    ):
        headers = response.headers._list if type(response.headers) is Headers else []
        has_length = False
        for name, _ in headers:
            lower = name.lower()
            if lower == "content-length":
                has_length = True
            elif lower in ("location", "content-location"):
                break
        else:
            if has_length:
                start_response(response._status, headers.copy())
                body = Body(chunks)
                body.close = response.close
                return body
    return response(environ, start_response)


def _inherits(response_class: type[Any], names: Iterable[str]) -> bool:
    """Return whether the class has these attributes from Werkzeug, or from object."""
    return all(
        getattr(response_class, name, ...) is getattr(Response, name, None)
        or getattr(response_class, name, ...) is getattr(SansIOResponse, name, None)
        for name in names
    )


_json = ResponseFactory(flask.Response, "application/json")
