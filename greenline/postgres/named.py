"""Name the statements that slow waits are for."""

from functools import wraps
from typing import Any

from psycopg2.extensions import STATUS_BEGIN

from greenline.hub import deadline
from greenline.postgres import statements
from greenline.postgres.statements import Method, text_of, without_values

MAX_TEXT = 500  # characters of a statement


def _sending(method: Method, name: str) -> Method:
    @wraps(method)
    def sending(self: Any, *args: Any, **kwargs: Any) -> Any:
        if deadline.request_environ() is not None:
            text = text_of(name, self, *args, **kwargs)[:MAX_TEXT]
            deadline.waits_for("postgres", text, shown)
        return method(self, *args, **kwargs)

    return sending


def _ending(method: Method, name: str) -> Method:
    @wraps(method)
    def ending(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.status == STATUS_BEGIN:
            deadline.waits_for("postgres", name, shown)
        return method(self, *args, **kwargs)

    return ending


def shown(text: str) -> str:
    """Return a statement in one line, without values."""
    return " ".join(without_values(text)[2].split())


def install() -> None:
    """Name statements from now on. Call once in a process."""
    statements.hook(_sending, _ending)
