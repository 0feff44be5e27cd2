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
        waits = slow_waits.of(environ)
        outer = waits.begin(text_of(name, self, *args, **kwargs)[:MAX_TEXT])
        try:
            return method(self, *args, **kwargs)
        finally:
            waits.statement = outer

    return sending


def _ending(method: Method, name: str) -> Method:
    @wraps(method)
    def ending(self: Any, *args: Any, **kwargs: Any) -> Any:
        environ = deadline.request_environ()
        if environ is None or self.status != STATUS_BEGIN:
            return method(self, *args, **kwargs)
        waits = slow_waits.of(environ)
        outer = waits.begin(name)
        try:
            return method(self, *args, **kwargs)
        finally:
            waits.statement = outer

    return ending


def shown(text: str) -> str:
    """Return a statement in one line, without values; with dots where it is cut."""
    cut = " ..." if len(text) == MAX_TEXT else ""
    return " ".join(without_values(text)[2].split()) + cut


def install() -> None:
    """Name statements from now on. Call once in a process."""
    slow_waits.without_values["postgres"] = shown
    statements.hook(_sending, _ending)
