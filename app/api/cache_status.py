"""
Say in ``Cache-Status`` (:rfc:`9211`) whether an answer comes from the cache of the worker.

Each worker has its own, so the name of the cache has the worker's process id. A hit is also what
another request has loaded meanwhile.
"""

import os
from collections.abc import Iterable
from typing import Any

from flask import Flask

from app.api import http

HEADER = "Cache-Status"
ENVIRON = "greenline.is_kept"


def register(app: Flask) -> None:
    """Add the header to every answer of *app*."""
    app.wsgi_app = _Status(app.wsgi_app)  # type: ignore[method-assign]


def note(is_kept: bool) -> None:
    """
    Note where the answer of the current request comes from.

    :param is_kept: it was in the cache.
    """
    http.environ()[ENVIRON] = is_kept


class _Status:
    """A WSGI application around *application*: Flask's hooks would cost a request object."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._cache = f"greenline-{os.getpid()}"

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            is_kept = environ.get(ENVIRON)
            if is_kept is None:
                reads = environ["REQUEST_METHOD"] in ("GET", "HEAD")
                found = "fwd=bypass" if reads else "fwd=method"
            else:
                found = "hit" if is_kept else "fwd=miss"
            return start_response(status, [*headers, (HEADER, f"{self._cache}; {found}")], exc_info)

        answer: Iterable[bytes] = self._application(environ, start)
        return answer
