"""
Prepare named statements once for each connection, and execute them afterwards.

psycopg2 has no server-side parameters, so ``PREPARE`` and ``EXECUTE`` are sent as statements of
their own: the text is parsed and planned once, and only the values are sent after that.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import cursor as Cursor

from greenline.postgres.connection import Connection

# The most recently used statements that a connection keeps: more than a service uses all the time,
# and not too many for its backend. The lists of an API have hundreds of forms, and a plan takes 50
# to 170 kB of the backend's memory.
MOST = 100
PLACEHOLDER = re.compile(r"%\((\w+)\)s")
# The table's definition changed, the statement was deallocated, or its name was taken: prepare it
# again.
STALE = {
    errorcodes.FEATURE_NOT_SUPPORTED,
    errorcodes.INVALID_SQL_STATEMENT_NAME,
    errorcodes.DUPLICATE_PREPARED_STATEMENT,
}


def execute(
    conn: Connection, cursor: Cursor, name: str, text: str, values: Mapping[str, Any]
) -> None:
    """
    Execute the statement *text* as the prepared statement *name*; prepare it if necessary.

    It is prepared again if a change of the schema or another user of its name made it unusable,
    unless that broke a transaction. Another *text* replaces the statement.

    :param conn: the connection.
    :param cursor: a cursor of *conn*, which gets the result.
    :param name: the name of the statement, str.
    :param text: the statement, with ``%(value)s`` in it, str.
    :param values: the values by name.
    :raises psycopg2.Error: the statement failed.
    """
    if conn.prepared.get(name, text) != text:
        _deallocate(conn, cursor, name)
    try:
        _execute(conn, cursor, name, text, values)
    except psycopg2.Error as error:
        if error.pgcode not in STALE:
            raise
        if not conn.autocommit:
            conn.prepared[name] = ""  # the transaction is broken; the next one prepares it again
            raise
        _deallocate(conn, cursor, name)
        _execute(conn, cursor, name, text, values)


def _execute(
    conn: Connection, cursor: Cursor, name: str, text: str, values: Mapping[str, Any]
) -> None:
    prepare, run = statements(name, text)
    known = conn.prepared.pop(name, None)  # moves to the end: the least recently used is first
    if known is None:
        if len(conn.prepared) >= MOST:
            _deallocate(conn, cursor, next(iter(conn.prepared)))
        cursor.execute(prepare)
    # Not before: if PREPARE fails, the statement is unknown.
    conn.prepared[name] = text
    cursor.execute(run, values)


def _deallocate(conn: Connection, cursor: Cursor, name: str) -> None:
    """Deallocate *name* if it exists."""
    conn.prepared.pop(name, None)
    # DEALLOCATE of an unknown name fails, and would break a transaction. The catalog knows names
    # that were not prepared here, too.
    cursor.execute("select from pg_catalog.pg_prepared_statements where name = %s", (name,))
    if cursor.rowcount:
        cursor.execute(f"deallocate {name}")


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
