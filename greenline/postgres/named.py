"""Name the statements that a slow request has waited for."""

from functools import wraps
from typing import Any

from psycopg2.extensions import STATUS_BEGIN

from greenline.hub import deadline, slow_waits
from greenline.postgres import statements
from greenline.postgres.statements import Method, text_of, without_values

MAX_TEXT = 500  # characters of a statement


def _sending(method: Method, name: str) -> Method:
    @wraps(method)
    def sending(self: Any, *args: Any, **kwargs: Any) -> Any:
        environ = deadline.request_environ()
        if environ is None:
            return method(self, *args, **kwargs)
        return _named(environ, text_of(name, self, *args, **kwargs), method, self, *args, **kwargs)

    return sending


def _ending(method: Method, name: str) -> Method:
    @wraps(method)
    def ending(self: Any, *args: Any, **kwargs: Any) -> Any:
        environ = deadline.request_environ()
        if environ is None or self.status != STATUS_BEGIN:
            return method(self, *args, **kwargs)
        return _named(environ, name, method, self, *args, **kwargs)

    return ending


def _named(environ: dict[str, Any], text: str, method: Method, *args: Any, **kwargs: Any) -> Any:
    waits = slow_waits.of(environ)
    outer = waits.begin(text[:MAX_TEXT])
    try:
        return method(*args, **kwargs)
    finally:
        waits.statement = outer


def shown(text: str) -> str:
    """Return a statement in one line, without values; with dots where it is cut."""
    cut = " ..." if len(text) == MAX_TEXT else ""
    return " ".join(without_values(text)[2].split()) + cut


def install() -> None:
    """Name statements from now on. Call once in a process."""
    slow_waits.without_values["postgres"] = shown
    statements.hook(_sending, _ending)
