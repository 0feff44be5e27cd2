"""The same names on an unknown version of Flask, where each request takes Flask's own way."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import flask

A = TypeVar("A", bound=flask.Flask)


class PlainFlask(flask.Flask):
    """A ``flask.Flask`` whose asynchronous views run in greenlets."""

    def async_to_sync(self, func: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        from greenline.hub import coroutines

        return coroutines.to_sync(func)


def adopt(app: A) -> A:
    """Return *app* as it is: the import of the package has logged why."""
    return app


def adopt_loaded(application: Any) -> str:
    """Return a line for the log, which says that nothing was adopted."""
    return "adopted no Flask application, as the warning says"


def environ() -> dict[str, Any]:
    """Return the WSGI environ of the request that is being handled."""
    return flask.request.environ


def json_response(
    body: bytes, status: int = 200, headers: Sequence[tuple[str, str]] = ()
) -> flask.Response:
    """
    Return a response whose body is JSON already.

    :param body: the JSON text, encoded.
    :param status: the HTTP status, int. Default 200.
    :param headers: names and values of further headers. Default none.
    """
    return flask.Response(body, status, headers, mimetype="application/json")
