"""Add security headers for browsers to every answer: types, scripts, referrers, caching."""

from collections.abc import Iterable
from typing import Any

from flask import Flask

ALWAYS = [("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer")]
POLICY = ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
# The answer to a GET may be stored by the client and revalidated with its ETag; others may not.
READ = ("Cache-Control", "private, no-cache")
NO_STORE = ("Cache-Control", "no-store")


def register(app: Flask) -> None:
    """Add the headers to every answer of *app*."""
    app.wsgi_app = _Headers(app.wsgi_app)  # type: ignore[method-assign]


class _Headers:
    """A WSGI application around *application*: Flask's hooks would cost a request object."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            # A response may have its own, as /docs must to run scripts.
            names = [name for name, _ in headers]
            headers += ALWAYS
            if POLICY[0] not in names:
                headers.append(POLICY)
            if READ[0] not in names:
                headers.append(READ if environ["REQUEST_METHOD"] in ("GET", "HEAD") else NO_STORE)
            return start_response(status, headers, exc_info)

        answer: Iterable[bytes] = self._application(environ, start)
        return answer
