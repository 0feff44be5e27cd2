"""A Flask application with its data in sqlite, unmodified: five statements a view."""

import os
import sqlite3
import threading
from typing import Any

from flask import Flask, jsonify

DATABASE = os.environ["BENCH_SQLITE"]
READ = "select id, title, pages from book where id = ?"

app = Flask(__name__)
kept = threading.local()


def _kept() -> sqlite3.Connection:
    conn: sqlite3.Connection | None = getattr(kept, "conn", None)
    if conn is None:
        conn = kept.conn = sqlite3.connect(DATABASE)
    return conn


def _read(conn: sqlite3.Connection) -> list[Any]:
    return [conn.execute(READ, (number,)).fetchone() for number in range(1, 6)]


@app.get("/kept")
def read_with_a_kept_connection() -> Any:
    """Read five rows over the connection of the thread."""
    return jsonify(_read(_kept()))


@app.get("/fresh")
def read_with_a_fresh_connection() -> Any:
    """Connect, read five rows, close."""
    conn = sqlite3.connect(DATABASE)
    try:
        return jsonify(_read(conn))
    finally:
        conn.close()


@app.get("/write")
def write() -> Any:
    """Three reads, a change and a commit, over the connection of the thread."""
    conn = _kept()
    rows = [conn.execute(READ, (number,)).fetchone() for number in range(1, 4)]
    conn.execute("update book set pages = pages + 1 where id = 1")
    conn.commit()
    return jsonify(rows)
