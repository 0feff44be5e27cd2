"""
Read the statements that an application sends with psycopg2: those of Greenline's pools, and of
``psycopg2.connect``.

They are shown without their values: the placeholders stay, a value in the text is replaced by
``?``.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from psycopg2.extensions import connection as PsycopgConnection
from psycopg2.extensions import cursor
from psycopg2.sql import Composable

from greenline.postgres import serialize
from greenline.postgres.connection import Connection
from greenline.postgres.handle import PooledCursor
from greenline.postgres.serialize import InTurn, SerializedCursor, in_turn, mixed
from greenline.postgres.transaction import BEGIN, BeginningCursor

KEPT = 1024  # statements whose texts without values are kept
MAX_BYTES = 8_000  # of a statement that are decoded
# Postgres nests comments; three levels are known.
COMMENT = r"/\*(?:(?!/\*|\*/).)*+(?:\*/|\Z)"
for _ in range(2):
    COMMENT = rf"/\*(?:{COMMENT}|(?!/\*|\*/).)*+(?:\*/|\Z)"
# What is no value comes first: a quote in it begins no text.
TOKENS = re.compile(
    rf"""
    (?P<comment> --[^\n]* | {COMMENT} )
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
_rollback: Method = PsycopgConnection.rollback


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


# With psycopg2's names of the parameters: applications use them.
def _execute(self: Any, query: Any, vars: Any = None) -> str:  # noqa: A002
    return _text(self, query)


def _executemany(self: Any, query: Any, vars_list: Any = None) -> str:
    return _text(self, query)


def _copy_expert(self: Any, sql: Any, file: Any = None, size: int = 0) -> str:
    return _text(self, sql)


def _callproc(self: Any, procname: str, parameters: Any = None) -> str:
    return f"select * from {procname}()"  # noqa: S608 - it is shown, not sent


def _copy_from(self: Any, file: Any, table: str, *_: Any, **__: Any) -> str:
    return f"copy {table} from stdin"


def _copy_to(self: Any, file: Any, table: str, *_: Any, **__: Any) -> str:
    return f"copy {table} to stdout"


def _text(cursor: Any, query: Any) -> str:
    if isinstance(query, Composable):
        query = query.as_string(cursor)
    # What is behind is cut off by all that show it.
    text = query[:MAX_BYTES].decode(errors="replace") if isinstance(query, bytes) else str(query)
    return text.removeprefix(BEGIN) if isinstance(cursor, BeginningCursor) else text


TEXTS: dict[str, Callable[..., str]] = {
    "execute": _execute,
    "executemany": _executemany,
    "copy_expert": _copy_expert,
    "callproc": _callproc,
    "copy_from": _copy_from,
    "copy_to": _copy_to,
}


def text_of(name: str, cursor: Any, *args: Any, **kwargs: Any) -> str:
    """
    Return what a call of a cursor's method sends; empty where its arguments are wrong.

    :param name: of the method, str.
    :param cursor: whose method is called with the other arguments.
    """
    try:
        return TEXTS[name](cursor, *args, **kwargs)
    except Exception:  # the call itself says what is wrong with its arguments
        return ""


class HookedCursor(cursor):
    """A cursor of a :class:`Connection`, which has no class of its own otherwise."""


def _hooked_cursor(
    self: Any, name: Any = None, cursor_factory: Any = None, *args: Any, **kwargs: Any
) -> Any:
    factory: Any = cursor_factory or self.cursor_factory or cursor
    if isinstance(factory, type):
        factory = HookedCursor if factory is cursor else mixed(factory, HookedCursor)
    return PsycopgConnection.cursor(self, name, factory, *args, **kwargs)


def hook(sending: Callable[[Method, str], Method], ending: Callable[[Method, str], Method]) -> None:
    """
    Replace the methods that send statements, from now on.

    :param sending: is called with a method of a cursor and its name, and returns the one to use.
    :param ending: is called with a connection's ``commit`` or ``rollback`` and its name, likewise.
    """
    for owner in (SerializedCursor, PooledCursor, HookedCursor):
        for name in TEXTS:
            setattr(owner, name, sending(getattr(owner, name), name))
    global _rollback
    own, shared, module = Connection, InTurn, serialize  # type: Any, Any, Any
    own.cursor = _hooked_cursor
    own.commit = ending(own.commit, "commit")
    own.rollback = ending(own.rollback, "rollback")
    module._commit = ending(module._commit, "commit")
    _rollback = ending(_rollback, "rollback")
    shared.rollback = in_turn(_rollback)
