"""
What every answer says to browsers: sniff no type, run nothing, tell nobody where it was read.

1. A WSGI application around Flask's: Flask's hooks would cost a request object.
2. A response that has a Content-Security-Policy or a Cache-Control of its own keeps it, as a page
   with scripts must. Else what was read may be kept by who asked, to be asked for again with its
   ETag, and what was written may not.
"""

from collections.abc import Iterable
from typing import Any

from flask import Flask

ALWAYS = [("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer")]
POLICY = ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
READ = ("Cache-Control", "private, no-cache")
WRITTEN = ("Cache-Control", "no-store")


def register(app: Flask) -> None:
    """Give every answer of *app* these headers."""
    app.wsgi_app = _Headers(app.wsgi_app)  # type: ignore[method-assign]


class _Headers:
    """A WSGI application around *application*."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            names = [name for name, _ in headers]
            headers += ALWAYS
            if POLICY[0] not in names:
                headers.append(POLICY)
            if READ[0] not in names:
                headers.append(READ if environ["REQUEST_METHOD"] in ("GET", "HEAD") else WRITTEN)
            return start_response(status, headers, exc_info)

        answer: Iterable[bytes] = self._application(environ, start)
        return answer
