"""A database, and two connections to it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a database with a table and a row."""
    path = tmp_path / "rows.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("create table row (number integer)")
        conn.execute("insert into row values (1)")
        conn.commit()
    return path


@pytest.fixture
def conn(path: Path) -> Iterator[sqlite3.Connection]:
    """Return a connection that waits half a minute for a lock."""
    with closing(sqlite3.connect(path, timeout=30)) as conn:
        yield conn


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """Return a connection that begins and ends its transactions by statements."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as other:
        yield other
