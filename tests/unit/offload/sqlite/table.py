"""The table that the tests read and write."""

import sqlite3


def rows(conn: sqlite3.Connection) -> list[int]:
    return [number for (number,) in conn.execute("select number from row order by number")]
