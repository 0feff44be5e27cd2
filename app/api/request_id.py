"""Give each request an id: that of its X-Request-Id if it is well formed, else a new one."""

import re
from collections.abc import Iterable
from random import getrandbits
from typing import Any

from flask import Flask, request

REQUEST_ID_HEADER = "X-Request-Id"
ENVIRON = "greenline.request_id"  # read by the worker's access log
WELL_FORMED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def register(app: Flask) -> None:
    """Give each request of *app* its id."""
    app.wsgi_app = _Identify(app.wsgi_app)  # type: ignore[method-assign]


def add(environ: dict[str, Any], headers: list[tuple[str, str]]) -> None:
    """Add the header with the id of an answer's request."""
    headers.append((REQUEST_ID_HEADER, environ[ENVIRON]))


def current() -> str | None:
    """Return the id of the current request."""
    return request.environ.get(ENVIRON)


class _Identify:
    """A WSGI application around *application*: Flask's hooks would cost a request object."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # Text of another form could forge lines of the log. An id must be unique, not secret, so
        # getrandbits is enough.
        given = environ.get("HTTP_X_REQUEST_ID", "")
        is_usable = WELL_FORMED.fullmatch(given)
        environ[ENVIRON] = given if is_usable else f"{getrandbits(128):032x}"
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer
