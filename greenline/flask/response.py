"""Make and send ordinary responses in fewer steps than Werkzeug's general code."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, cast

import flask
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException
from werkzeug.http import HTTP_STATUS_CODES, is_entity_header
from werkzeug.sansio.response import Response as SansIOResponse
from werkzeug.wrappers import Response

from greenline.flask.classes import stand_in

# The attributes of a response class that make a response, and those that send it.
MAKING = ("__init__", "__new__", "__setattr__", "set_data", "_clean_status", "status")
SENDING = (
    "__call__", "__setattr__", "close", "get_app_iter", "get_wsgi_headers", "get_wsgi_response",
    "is_sequence", "iter_encoded", "status", "status_code",
)  # fmt: skip

# Of an error: what is called as an application, and what its page is made of.
CALLED, MADE_OF = ("__call__", "get_response"), ("get_body", "get_headers")
CONSTANT = ("__init__", "get_body", "get_headers", "get_description", "name")
URLS = ("location", "content-location")  # Werkzeug may make them absolute

new: Callable[[type[Any]], Any] = object.__new__


class ResponseFactory:
    """
    Make the responses of one class and mimetype.

    :param response_class: a subclass of Werkzeug's Response.
    :param mimetype: the mimetype, str; None for the class's own.
    """

    def __init__(self, response_class: type[Any], mimetype: str | None) -> None:
        self.response_class = response_class
        self.mimetype = mimetype
        self.works = False
        own = _own(response_class, MAKING)
        # Why Werkzeug has to make the responses, if ``works`` is false.
        self.reason = own or "its constructor sets other attributes than Flask's"
        # The factory is used only if it makes the same object as the constructor: a class may have
        # its own one, and another Werkzeug other attributes.
        if not own:
            sample = response_class(b"x", mimetype=mimetype)
            self._status, self._status_code = sample._status, sample._status_code
            self._content_type = sample.headers[0]
            self.works = _alike(self(b"x"), sample)

    def __call__(self, body: bytes) -> Any:
        """Return a new response with *body*; valid only if ``works`` is true."""
        # The attributes that Response.__init__ sets for a body of bytes.
        response = new(self.response_class)
        response.headers = headers = new(Headers)
        headers._list = [self._content_type, ("Content-Length", str(len(body)))]
        response._status = self._status
        response._status_code = self._status_code
        response.direct_passthrough = False
        response._on_close = []
        response.response = [body]
        return response


def json_response(
    body: bytes, status: int = 200, headers: Sequence[tuple[str, str]] = ()
) -> flask.Response:
    """
    Return a JSON response.

    :param body: the encoded JSON, bytes.
    :param status: the status, int, default 200.
    :param headers: names and values of further headers, default none.
    """
    if not _json.works:
        return flask.Response(body, status, headers, mimetype="application/json")
    response: flask.Response = _json(body)
    response.headers._list += headers
    if status != 200:
        response.status_code = status
    return response


def _alike(one: Any, other: Any) -> bool:
    """Return whether two responses have the same state."""
    mine, its = dict(vars(one)), dict(vars(other))
    headers = vars(mine.pop("headers")), vars(its.pop("headers"))
    return mine == its and headers[0] == headers[1]


def error_page(error: HTTPException, environ: dict[str, Any], make: ResponseFactory) -> Any | None:
    """
    Return the response that Flask makes of an error by calling it as a WSGI application.

    :param error: the error.
    :param environ: the WSGI environ.
    :param make: makes the responses of the application's class.
    :returns: None if Flask has to make it.
    """
    code, kind = error.code, cast(Any, type(error))
    if error.response is not None or code not in HTTP_STATUS_CODES or not _is_usual(kind):
        return None
    if error.description is kind.description and code is kind.code and _is_constant(kind):
        page = _page(kind, code, error.description)
    else:
        page = _Page(error, environ)
    response = make(page.body)
    response.headers._list[:] = page.headers
    response._status, response._status_code = page.status, code
    return response


class _Page:
    """What is sent for an error: the headers, the status with its text, and the body."""

    def __init__(self, error: HTTPException, environ: dict[str, Any] | None) -> None:
        self.body = error.get_body(environ).encode()
        sample = Response(status=error.code, headers=error.get_headers(environ))
        length = ("Content-Length", str(len(self.body)))
        self.headers, self.status = [*sample.headers, length], sample.status


@lru_cache(64)
def _page(kind: type[Any], code: int, description: str) -> _Page:
    """Return the page of the errors of a class that have its own code and description."""
    return _Page(kind(), None)


@cache
def _is_constant(kind: type[Any]) -> bool:
    """Return whether the page depends on nothing but the class, its code and its description."""
    return type(kind.description) is str and all(
        getattr(kind, name) is getattr(HTTPException, name) for name in CONSTANT
    )


@cache
def _is_usual(kind: type[Any]) -> bool:
    """Return whether errors of this class have a page of Werkzeug's."""
    if any(getattr(kind, name) is not getattr(HTTPException, name) for name in CALLED):
        return False
    return all(getattr(kind, name).__module__ == HTTPException.__module__ for name in MADE_OF)


@lru_cache(1_000)
def is_removed(name: str) -> bool:
    """Return whether Werkzeug sends no header of this name with a 304."""
    return is_entity_header(name) and name.lower() not in ("expires", "content-location")


class Body(list[bytes]):
    """Give a WSGI server the body, and the response's ``close()`` to call afterwards."""

    __slots__ = ("close",)

    close: Callable[[], None]


@cache
def sending(response_class: type[Any]) -> type[Any]:
    """
    Return a subclass of *response_class* whose responses are sent by :func:`send`.

    :raises TypeError: Werkzeug has to send them; the text says why.
    """
    if own := _own(response_class, SENDING):
        raise TypeError(own)
    made = stand_in(response_class, __call__=send, __reduce_ex__=_reduce)
    new(response_class).__class__ = made  # a TypeError if the classes differ in C
    return made


def _reduce(response: Any, protocol: Any) -> Any:
    # Before it is copied or pickled: the name of the class is that of the response class.
    response.__class__ = type(response).__base__
    return response.__reduce_ex__(protocol)


def send(
    response: Response, environ: dict[str, Any], start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """
    Do what calling *response* as a WSGI application does.

    :param response: a response of a class that :func:`sending` has returned.
    :param environ: the WSGI environ.
    :param start_response: the server's callable.
    """
    chunks = response.response
    code = response._status_code
    if code == 304 and type(response.headers) is Headers:
        kept = [each for each in response.headers._list if not is_removed(each[0])]
        if not any(name.lower() in URLS for name, _ in kept):
            start_response(response._status, kept)
            body = Body()
            body.close = response.close
            return body
    # Werkzeug would send it unchanged: one body of bytes, a status with a body, and not HEAD.
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
            elif lower in URLS:
                break
        else:
            if has_length:
                # A copy, as the server may change the list.
                start_response(response._status, headers.copy())
                body = Body(chunks)
                body.close = response.close
                return body
    return Response.__call__(response, environ, start_response)


def _own(response_class: type[Any], names: Iterable[str]) -> str:
    """Say which of these attributes the class has neither from Werkzeug nor from object."""
    for name in names:
        mine = getattr(response_class, name, ...)
        if not any(mine is getattr(one, name, None) for one in (Response, SansIOResponse)):
            return f"{response_class.__qualname__} has a {name} of its own"
    return ""


_json = ResponseFactory(flask.Response, "application/json")
