"""
Named statements, prepared once a connection and executed after.

psycopg2 knows no server-side parameters, so ``PREPARE`` and ``EXECUTE`` are statements of their
own: the text is parsed and planned once, and only the values travel after that.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import cursor as Cursor

from greenline.postgres.connection import Connection

PLACEHOLDER = re.compile(r"%\((\w+)\)s")
# The table changed under the plan, or somebody deallocated it: prepare again.
STALE = {errorcodes.FEATURE_NOT_SUPPORTED, errorcodes.INVALID_SQL_STATEMENT_NAME}


def execute(
    conn: Connection, cursor: Cursor, name: str, text: str, values: Mapping[str, Any]
) -> None:
    """
    Run the statement *text*, with ``%(value)s`` in it, under its *name*.

    A plan that a change of the schema made useless is prepared again, where no transaction was
    broken by it.
    """
    prepare, run = _statements(name, text)
    if name not in conn.prepared:
        cursor.execute(prepare)
        conn.prepared.add(name)
    try:
        cursor.execute(run, values)
    except psycopg2.Error as error:
        if error.pgcode not in STALE or not conn.autocommit:
            raise
        conn.prepared.discard(name)
        if error.pgcode == errorcodes.FEATURE_NOT_SUPPORTED:
            cursor.execute(f"deallocate {name}")
        cursor.execute(prepare)
        conn.prepared.add(name)
        cursor.execute(run, values)


@lru_cache(maxsize=1024)
def _statements(name: str, text: str) -> tuple[str, str]:
    """Return PREPARE and EXECUTE of *text*; its values are numbered by their first use."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise ValueError(f"{name!r} is no name for a prepared statement")
    names = list(dict.fromkeys(PLACEHOLDER.findall(text)))
    body = PLACEHOLDER.sub(lambda found: f"${names.index(found[1]) + 1}", text).replace("%%", "%")
    given = ", ".join(f"%({value})s" for value in names)
    return f"prepare {name} as {body}", f"execute {name} ({given})" if names else f"execute {name}"
