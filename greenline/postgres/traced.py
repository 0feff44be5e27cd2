"""
Trace the statements of psycopg2: those of Greenline's pools, and of ``psycopg2.connect``.

A span has the statement without its values: the placeholders stay, a value in the text is replaced
by ``?``.
"""

import re
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind
from psycopg2.extensions import STATUS_BEGIN, cursor
from psycopg2.extensions import connection as PsycopgConnection
from psycopg2.sql import Composable

from greenline.postgres import serialize
from greenline.postgres.connection import Connection
from greenline.postgres.handle import PooledCursor
from greenline.postgres.serialize import InTurn, SerializedCursor, in_turn, mixed
from greenline.telemetry import spans

MAX_TEXT = 2000  # characters of a statement
KEPT = 1024  # statements whose texts without values are kept
# What is no value comes first: a quote in it begins no text.
TOKENS = re.compile(
    r"""
    (?P<comment> --[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<kept> "[^"]*"? | %\(\w+\)s | [^\W\d]\w*+(?!') | \$\d+ )
    | (?P<value>
        [eE]'(?:[^'\\]|''|\\.)*(?:'|\Z)
        | (?:[^\W\d]\w*&?)? '(?:[^']|'')*(?:'|\Z)
        | \$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)
        | \d[\w.]*
    )
    """,
    re.VERBOSE | re.DOTALL,
)

Method = Callable[..., Any]


@lru_cache(KEPT)
def without_values(text: str) -> tuple[str, str, str]:
    """
    Return a statement's operation, a name for it, and its text without values and comments.

    :param text: a statement, str.
    """
    found = TOKENS.sub(_shown, text).strip()
    words = *found.lstrip("( \n").split(maxsplit=2), "", ""
    operation = words[0].upper()
    # The name of a prepared statement says more.
    return operation, f"{operation} {words[1]}" if operation == "EXECUTE" else operation, found


def _shown(token: re.Match[str]) -> str:
    if token["comment"]:
        return " "
    return token["kept"] or "?"


def _executed(self: Any, query: Any, *_: Any, **__: Any) -> str:
    if isinstance(query, Composable):
        query = query.as_string(self)
    return query.decode(errors="replace") if isinstance(query, bytes) else str(query)


def _called(_: Any, procname: str, *__: Any, **___: Any) -> str:
    return f"select * from {procname}()"  # noqa: S608 - it is shown, not sent


def _copied_from(_: Any, __: Any, table: str, *___: Any, **____: Any) -> str:
    return f"copy {table} from stdin"


def _copied_to(_: Any, __: Any, table: str, *___: Any, **____: Any) -> str:
    return f"copy {table} to stdout"


TEXTS: dict[str, Callable[..., str]] = {
    "execute": _executed,
    "executemany": _executed,
    "copy_expert": _executed,
    "callproc": _called,
    "copy_from": _copied_from,
    "copy_to": _copied_to,
}


def _statement(method: Method, text_of: Callable[..., str]) -> Method:
    """Return *method* of a cursor, which records the statement that it sends."""

    @wraps(method)
    def statement(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not trace.get_current_span().is_recording():
            return method(self, *args, **kwargs)
        try:
            text = text_of(self, *args, **kwargs)
        except Exception:  # the call itself says what is wrong with its arguments
            text = ""
        conn = serialize._connection(self)
        return _recorded(conn, text, method, self, *args, **kwargs)

    return statement


def _ending(method: Method, text: str) -> Method:
    """Return *method* of a connection, which records that it ends a transaction, if it does."""

    @wraps(method)
    def ending(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.status != STATUS_BEGIN or not trace.get_current_span().is_recording():
            return method(self, *args, **kwargs)
        return _recorded(self, text, method, self, *args, **kwargs)

    return ending


def _recorded(conn: Any, text: str, method: Method, *args: Any, **kwargs: Any) -> Any:
    operation, name, query = without_values(text[:MAX_TEXT])
    info = conn.info
    attributes = {
        "db.system.name": "postgresql",
        "db.namespace": info.dbname or "",
        "db.operation.name": operation,
        "db.query.text": query,
        "server.address": info.host or "",
        "server.port": info.port or 0,
    }
    span = spans.tracer.start_span(name or "postgresql", None, SpanKind.CLIENT, attributes)
    try:
        return method(*args, **kwargs)
    except BaseException as error:
        code = getattr(error, "pgcode", None)
        if code:
            span.set_attribute("db.response.status_code", code)
        spans.fail(span, code or type(error).__qualname__)
        raise
    finally:
        span.end()


class TracedCursor(cursor):
    """A cursor of a :class:`Connection`, which has no class of its own otherwise."""


def _traced_cursor(
    self: Any, name: Any = None, cursor_factory: Any = None, *args: Any, **kwargs: Any
) -> Any:
    factory: Any = cursor_factory or self.cursor_factory or cursor
    if isinstance(factory, type):
        factory = TracedCursor if factory is cursor else mixed(factory, TracedCursor)
    return PsycopgConnection.cursor(self, name, factory, *args, **kwargs)


def install() -> None:
    """Trace statements from now on. Call once in a process."""
    owners: list[Any] = [SerializedCursor, PooledCursor, TracedCursor]
    for owner in owners:
        for name, text_of in TEXTS.items():
            setattr(owner, name, _statement(getattr(owner, name), text_of))
    own, shared, module = Connection, InTurn, serialize  # type: Any, Any, Any
    own.cursor = _traced_cursor
    own.commit = _ending(own.commit, "commit")
    own.rollback = _ending(own.rollback, "rollback")
    module._commit = _ending(PsycopgConnection.commit, "commit")
    shared.rollback = in_turn(_ending(PsycopgConnection.rollback, "rollback"))
