"""
Which pages may read our answers (the Fetch standard's CORS protocol), where any may.

Flask-CORS would do, but its hook costs every request more than all of Flask does: these lines cost
those that are asked from a page.
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
    """Let pages of *origins* read what *app* answers; ``*`` is any page."""
    app.wsgi_app = _Shared(app.wsgi_app, frozenset(origins))  # type: ignore[method-assign]


class _Shared:
    """A WSGI application around *application*. No cookie counts: ``*`` gives nothing away."""

    def __init__(self, application: Any, origins: frozenset[str]) -> None:
        self._application = application
        self._origins = origins

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        more = [] if "*" in self._origins else [VARY]
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and ("*" in self._origins or origin in self._origins):
            more.append(("Access-Control-Allow-Origin", origin if more else "*"))
            is_preflight = "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in environ
            if is_preflight and environ["REQUEST_METHOD"] == "OPTIONS":
                start_response("204 No Content", [*more, *PREFLIGHT])
                return []
            more.append(("Access-Control-Expose-Headers", EXPOSED))

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [*headers, *more], exc_info)

        answer: Iterable[bytes] = self._application(environ, start)
        return answer
