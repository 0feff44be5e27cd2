"""
Named statements, prepared once a connection and executed after.

psycopg2 knows no server-side parameters, so ``PREPARE`` and ``EXECUTE`` are statements of their
own: the text is parsed and planned once, and only the values travel after that.

A connection keeps the ``MOST`` that it used last: more than a service asks for all the time, and
no more than its backend can bear. The lists of an API have hundreds of forms, and a plan is 50 to
170 kB of the backend's memory.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import cursor as Cursor

from greenline.postgres.connection import Connection

MOST = 100
PLACEHOLDER = re.compile(r"%\((\w+)\)s")
# The table changed under the plan, somebody deallocated it, or took its name: prepare again.
STALE = {
    errorcodes.FEATURE_NOT_SUPPORTED,
    errorcodes.INVALID_SQL_STATEMENT_NAME,
    errorcodes.DUPLICATE_PREPARED_STATEMENT,
}


def execute(
    conn: Connection, cursor: Cursor, name: str, text: str, values: Mapping[str, Any]
) -> None:
    """
    Run the statement *text*, with ``%(value)s`` in it, under its *name*.

    A plan that a change of the schema made useless, or a name that somebody else took, is
    prepared again, where no transaction was broken by it; another text takes the name over.
    """
    if conn.prepared.get(name, text) != text:
        _deallocate(conn, cursor, name)
    try:
        _execute(conn, cursor, name, text, values)
    except psycopg2.Error as error:
        if error.pgcode not in STALE:
            raise
        if not conn.autocommit:
            conn.prepared[name] = ""  # this transaction is broken; the next one prepares it anew
            raise
        _deallocate(conn, cursor, name)
        _execute(conn, cursor, name, text, values)


def _execute(
    conn: Connection, cursor: Cursor, name: str, text: str, values: Mapping[str, Any]
) -> None:
    prepare, run = statements(name, text)
    known = conn.prepared.pop(name, None)  # it comes last: the first is the one used least recently
    if known is None:
        if len(conn.prepared) >= MOST:
            _deallocate(conn, cursor, next(iter(conn.prepared)))
        cursor.execute(prepare)
    conn.prepared[name] = text
    cursor.execute(run, values)


def _deallocate(conn: Connection, cursor: Cursor, name: str) -> None:
    """Free *name*, if it is taken: DEALLOCATE would fail otherwise."""
    conn.prepared.pop(name, None)
    cursor.execute("select from pg_catalog.pg_prepared_statements where name = %s", (name,))
    if cursor.rowcount:
        cursor.execute(f"deallocate {name}")


@lru_cache(maxsize=1024)
def statements(name: str, text: str) -> tuple[str, str]:
    """Return PREPARE and EXECUTE of *text*; its values are numbered by their first use."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise ValueError(f"{name!r} is no name for a prepared statement")
    names = list(dict.fromkeys(PLACEHOLDER.findall(text)))
    body = PLACEHOLDER.sub(lambda found: f"${names.index(found[1]) + 1}", text).replace("%%", "%")
    given = ", ".join(f"%({value})s" for value in names)
    return f"prepare {name} as {body}", f"execute {name} ({given})" if names else f"execute {name}"
