"""Add headers to every answer, in one WSGI application: a hook of Flask makes a request object."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flask import Flask

Environ = dict[str, Any]
Headers = list[tuple[str, str]]
Add = Callable[[Environ, Headers], None]


def register(app: Flask, adds: Sequence[Add]) -> None:
    """
    Have headers added to every answer.

    :param app: the application.
    :param adds: each is called with the environ and the headers of an answer, and adds its own.
    """
    app.wsgi_app = _WithHeaders(app.wsgi_app, adds)  # type: ignore[method-assign]


class _WithHeaders:
    """A WSGI application around *application*."""

    def __init__(self, application: Any, adds: Sequence[Add]) -> None:
        self._application = application
        self._adds = tuple(adds)

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: Headers, exc_info: Any = None) -> Any:
            for add in self._adds:
                add(environ, headers)
            return start_response(status, headers, exc_info)

        answer: Iterable[bytes] = self._application(environ, start)
        return answer
