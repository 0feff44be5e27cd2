"""
Prepare named statements once for each connection, and execute them afterwards.

psycopg2 has no server-side parameters, so ``PREPARE`` and ``EXECUTE`` are sent as statements of
their own: the text is parsed and planned once, and only the values are sent after that.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import TRANSACTION_STATUS_INERROR
from psycopg2.extensions import cursor as Cursor

from greenline.errors import SerializationFailure
from greenline.postgres.connection import Connection

Named = tuple[str, str]  # the name of a statement, and its text
# The most recently used statements that a connection keeps: more than a service uses all the time,
# and not too many for its backend. The lists of an API have hundreds of forms, and a plan takes 50
# to 170 kB of the backend's memory.
MOST = 100
PLACEHOLDER = re.compile(r"%\((\w+)\)s")
# In place of the text of a statement of which it is not known whether it is prepared.
UNKNOWN = ""
# The table's definition changed, the statement was deallocated, or its name was taken: prepare it
# again.
STALE = {
    errorcodes.FEATURE_NOT_SUPPORTED,
    errorcodes.INVALID_SQL_STATEMENT_NAME,
    errorcodes.DUPLICATE_PREPARED_STATEMENT,
}


def execute(cursor: Cursor, named: Sequence[Named], values: Mapping[str, Any]) -> None:
    """
    Execute statements in one message, each as a prepared one; those that are not, are prepared
    first.

    They are prepared again if a change of the schema or another user of their names made them
    unusable, in a transaction by a further attempt. Another text replaces the statement of its
    name.

    :param cursor: of a :class:`Connection`; it gets the result of the last statement.
    :param named: the name of each statement and its text, with ``%(value)s`` in it; at most
        ``MOST``.
    :param values: the values of all by name.
    :raises psycopg2.Error: a statement failed.
    :raises SerializationFailure: one was unusable, and that has broken the transaction.
    """
    conn = cast(Connection, cursor.connection)
    was_prepared = any(conn.prepared.get(name) == text for name, text in named)
    try:
        _execute(conn, cursor, named, values)
    except psycopg2.Error as error:
        is_new = error.pgcode == errorcodes.FEATURE_NOT_SUPPORTED and not was_prepared
        if error.pgcode not in STALE or is_new:
            raise
        # Which of them it was is not said, and the catalog knows.
        conn.prepared.update((name, UNKNOWN) for name, _ in named)
        if conn.info.transaction_status == TRANSACTION_STATUS_INERROR:
            raise SerializationFailure from error
        _execute(conn, cursor, named, values)


def _execute(
    conn: Connection, cursor: Cursor, named: Sequence[Named], values: Mapping[str, Any]
) -> None:
    kept, new, gone = conn.prepared, [], []
    for name, text in named:
        known = kept.pop(name, None)
        if known != text:
            if known is not None:
                gone.append(name)
            new.append((name, text))
        # It moves to the end: the least recently used is first.
        kept[name] = text if known == text else UNKNOWN
    if new:
        while len(kept) > MOST:
            gone.append(next(iter(kept)))
            del kept[gone[-1]]
        ends = _deallocating(cursor, gone) if gone else []
        prepares = [statements(name, text)[0] for name, text in new]
        cursor.execute("; ".join([*ends, *prepares]))
        kept.update(new)
    cursor.execute("; ".join([statements(name, text)[1] for name, text in named]), values)


def _deallocating(cursor: Cursor, names: Sequence[str]) -> list[str]:
    """Return the statements that deallocate those of *names* that exist."""
    # DEALLOCATE of an unknown name fails, and would break a transaction. The catalog knows names
    # that were not prepared here, too.
    text = "select name from pg_catalog.pg_prepared_statements where name = any(%s)"
    cursor.execute(text, (list(names),))
    return [f"deallocate {name}" for (name,) in cursor.fetchall()]


@lru_cache(maxsize=1024)
def statements(name: str, text: str) -> tuple[str, str]:
    """
    Return the PREPARE and EXECUTE statements for a text; its values are numbered by their first
    use.

    :param name: the name of the statement, str.
    :param text: the statement, with ``%(value)s`` in it, str.
    :raises ValueError: *name* is not a plain lower-case identifier.
    """
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise ValueError(f"{name!r} is no name for a prepared statement")
    names = list(dict.fromkeys(PLACEHOLDER.findall(text)))
    body = PLACEHOLDER.sub(lambda found: f"${names.index(found[1]) + 1}", text).replace("%%", "%")
    given = ", ".join(f"%({value})s" for value in names)
    return f"prepare {name} as {body}", f"execute {name} ({given})" if names else f"execute {name}"
