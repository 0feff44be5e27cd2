"""
The CORS protocol of the Fetch standard: let pages of other origins read the answers.

Flask-CORS is not used because its hook costs each request more than all of Flask. This wrapper
costs only requests that have an Origin header.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from flask import Flask

EXPOSED = "ETag, Link, Location, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id"
PREFLIGHT = [
    ("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE"),
    (
        "Access-Control-Allow-Headers",
        "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, X-Request-Id",
    ),
    ("Access-Control-Max-Age", "600"),
]
VARY = ("Vary", "Origin")


def register(app: Flask, origins: Sequence[str]) -> None:
    """
    Let web pages read the answers of an application.

    :param app: the application.
    :param origins: origins of the pages, sequence of str; ``*`` allows any.
    """
    app.wsgi_app = _Shared(app.wsgi_app, frozenset(origins))  # type: ignore[method-assign]


class _Shared:
    """A WSGI application around *application*."""

    def __init__(self, application: Any, origins: frozenset[str]) -> None:
        self._application = application
        self._origins = origins

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # Vary also without an Origin: a cache may serve the answer to a page later.
        more = [] if "*" in self._origins else [VARY]
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and ("*" in self._origins or origin in self._origins):
            # "*" reveals nothing: keys come in a header that a page sets, never in a cookie.
            more.append(("Access-Control-Allow-Origin", origin if more else "*"))
            is_preflight = "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in environ
            # Answered here: a preflight request has no key, and no route takes OPTIONS.
            if is_preflight and environ["REQUEST_METHOD"] == "OPTIONS":
                start_response("204 No Content", [*more, *PREFLIGHT])
                return []
            more.append(("Access-Control-Expose-Headers", EXPOSED))

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [*headers, *more], exc_info)

        answer: Iterable[bytes] = self._application(environ, start)
        return answer
