"""Give each request an id: the caller's when it is well formed, else one of ours."""

import re
from collections.abc import Iterable
from random import getrandbits
from typing import Any

from flask import Flask, request

HEADER = "X-Request-Id"
ENVIRON = "greenline.request_id"  # where the worker's access log looks for it
WELL_FORMED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def register(app: Flask) -> None:
    """Give every answer of *app* the header, which the access log shows."""
    app.wsgi_app = _Identify(app.wsgi_app)  # type: ignore[method-assign]


def current() -> str | None:
    """Return the id of the request that is being worked on."""
    return request.environ.get(ENVIRON)


class _Identify:
    """A WSGI application around *application*: Flask's hooks would cost a request object."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        given = environ.get("HTTP_X_REQUEST_ID", "")
        mine = given if WELL_FORMED.fullmatch(given) else f"{getrandbits(128):032x}"
        environ[ENVIRON] = mine

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [*headers, (HEADER, mine)], exc_info)

        answer: Iterable[bytes] = self._application(environ, start)
        return answer
