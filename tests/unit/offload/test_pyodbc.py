"""
The wrapper of pyodbc around another library in C with the same interface, the original sqlite3.

Its functions that are written in Python may block or fail in the middle of a result.
"""

import sqlite3  # before its replacement is imported
from copy import copy
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.offload import pyodbc
from greenline.offload.sqlite.connection import _Connection, _Cursor
from tests.helpers.support import wait_until

sleep = get_original("time", "sleep")
get_ident = get_original("_thread", "get_ident")


class Closable(_Connection):  # type: ignore[misc]
    """With an attribute of pyodbc's."""

    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


@pytest.fixture
def driver() -> Any:
    """A module whose classes are replaced."""

    def connect(path: Any) -> Any:
        conn = Closable(path, check_same_thread=False)
        calls = count(1)

        def fail_at(number: int) -> int:
            if next(calls) == number:
                raise ZeroDivisionError
            return number

        conn.create_function("block", 1, lambda seconds: sleep(seconds) or get_ident())
        conn.create_function("fail_at", 1, fail_at)
        return conn

    module: Any = SimpleNamespace(connect=connect, Connection=_Connection, Cursor=_Cursor)
    pyodbc.patch(module)
    return module


@pytest.fixture
def conn(driver: Any) -> Any:
    """A connection with a table of 250 rows."""
    conn = driver.connect(":memory:")
    conn.execute("create table t (a integer)")
    conn.cursor().executemany("insert into t values (?)", [(number,) for number in range(250)])
    return conn


def test_its_objects_are_of_its_classes(driver: Any, conn: Any) -> None:
    """Libraries look at them, and at what leads back to the connection."""
    cursor = conn.execute("select a from t")
    assert isinstance(conn, driver.Connection)
    assert isinstance(cursor, driver.Cursor)
    assert cursor.connection is conn
    assert hasattr(driver.Cursor, "fetchval")
    assert cursor.execute("select 7") is cursor
    assert [column[0] for column in cursor.description] == ["7"]
    with conn as same:
        assert same is conn
    with pytest.raises(AttributeError, match="no_such"):
        cursor.no_such  # noqa: B018
    with pytest.raises(AttributeError, match="no_such"):
        cursor.no_such = 1
    with pytest.raises(TypeError, match=r"copy or pickle a pyodbc\.Connection"):
        copy(conn)


def test_each_way_to_fetch_goes_on_where_the_last_one_ended(conn: Any) -> None:
    """Rows that were read ahead are neither lost nor twice there."""
    cursor = conn.execute("select a from t order by a")
    assert cursor.fetchone() == (0,)
    assert cursor.fetchval() == 1
    assert cursor.fetchmany() == [(2,)]
    assert cursor.fetchmany(3) == [(3,), (4,), (5,)]
    assert conn.execute("select a from t order by a").fetchmany(-1)[249] == (249,)
    assert next(cursor) == (6,)
    assert len(cursor.fetchmany(200)) == 200
    conn.commit()
    assert cursor.fetchall() == [(number,) for number in range(207, 250)]
    assert cursor.fetchone() is None
    assert cursor.fetchval() is None
    assert cursor.fetchmany(5) == []
    assert cursor.fetchall() == []
    assert [row[0] for row in conn.execute("select a from t order by a")] == list(range(250))
    assert conn.execute("select a from t").execute("select 1").fetchall() == [(1,)]


def test_what_is_closed_has_no_rows(conn: Any) -> None:
    """Although some were read ahead; and its destructor says nothing."""
    cursor, other = conn.execute("select 1"), conn.execute("select 1")
    cursor.close()
    with pytest.raises(sqlite3.ProgrammingError):
        cursor.fetchone()
    with pytest.raises(sqlite3.ProgrammingError):
        cursor.fetchall()
    del cursor
    conn.close()
    with pytest.raises(sqlite3.ProgrammingError):
        other.fetchmany()


def test_rows_are_not_lost_by_an_interruption(conn: Any) -> None:
    """The next fetch goes on where the last one ended."""
    cursor = conn.execute("select a, block(0.006) from t")
    assert cursor.fetchone()[0] == 0
    with pytest.raises(DeadlineExceeded), deadline.limit(0.01):
        cursor.fetchmany(200)
    assert [row[0] for row in cursor.fetchall()] == list(range(1, 250))


def test_rows_before_an_error_are_fetched_first(conn: Any) -> None:
    """As without the reading ahead."""
    conn.execute("select fail_at(-1)")  # another function has another count
    cursor = conn.execute("select a, fail_at(5) from t")
    assert cursor.fetchone() == (0, 5)
    assert cursor.fetchmany(10) == [(1, 5)]
    with pytest.raises(Exception, match="user-defined function raised exception"):
        cursor.fetchone()
    assert cursor.execute("select 1").fetchone() == (1,)


def test_many_sets_of_parameters_may_come_from_a_generator(conn: Any) -> None:
    """It is code of the application: it runs where the application runs."""
    idents = set()

    def rows(number: int) -> Any:
        for each in range(number):
            idents.add(get_ident())
            yield (each,)

    for number in (0, 1, 2500):
        conn.execute("delete from t")
        conn.cursor().executemany("insert into t values (?)", rows(number))
        assert conn.execute("select count(*) from t").fetchval() == number
    assert idents == {get_ident()}


def test_attributes_are_set_in_the_thread(conn: Any) -> None:
    """Some end a transaction."""
    assert conn.isolation_level == ""
    assert conn.in_transaction
    conn.isolation_level = None
    assert conn.isolation_level is None
    assert not conn.in_transaction
    cursor = conn.cursor()
    cursor.arraysize = 3
    cursor.execute("select a from t order by a")
    assert cursor.fetchmany() == [(0,), (1,), (2,)]


def test_connections_work_side_by_side(driver: Any) -> None:
    """Each in a thread of its own, in which its calls run in turn."""

    def work(conn: Any) -> int:
        return int(conn.execute("select block(0.3)").fetchval())

    conns = [driver.connect(":memory:") for _ in range(10)]
    with gevent.Timeout(2):
        jobs = [gevent.spawn(work, conn) for conn in conns]
        gevent.joinall(jobs, raise_error=True)
    assert len({job.value for job in jobs} - {get_ident()}) == 10
    with gevent.Timeout(2):
        jobs = [gevent.spawn(work, conns[0]) for _ in range(2)]
        gevent.joinall(jobs, raise_error=True)
    assert len({job.value for job in jobs}) == 1


def test_what_is_let_go_of_ends_in_the_thread(driver: Any) -> None:
    """After the calls before it; pyodbc's destructors ask the server."""
    ended: list[int] = []

    class Cursor(_Cursor):  # type: ignore[misc]
        def __del__(self) -> None:
            ended.append(get_ident())

    conn = driver.connect(":memory:")
    ident = conn.execute("select block(0)").fetchval()
    wait_until(lambda: conn._own.is_idle, "the end of that cursor")
    cursor = driver.Cursor(Cursor(conn._inner), conn)
    del cursor
    assert ended.pop() == get_ident()  # it has executed nothing
    cursor = driver.Cursor(Cursor(conn._inner), conn)
    cursor.execute("select 1").fetchall()
    del cursor
    wait_until(lambda: ended == [ident], "the destructor")
    ended.clear()
    cursor = driver.Cursor(Cursor(conn._inner), conn)
    blocked = gevent.spawn(conn.execute, "select block(1.0)")
    gevent.sleep(0)
    del cursor
    assert not ended
    blocked.get()
    wait_until(lambda: ended == [ident], "the destructor")
    conn.close()
    assert conn._inner.closed


def test_a_deadline_cancels_the_statement(driver: Any, tmp_path: Path) -> None:
    """Once; what cleans up runs after it."""
    cancelled = []

    class Cursor(_Cursor):  # type: ignore[misc]
        def cancel(self) -> None:
            cancelled.append(get_ident())

    conn = driver.connect(tmp_path / "database")
    conn.execute("create table t (a integer)")
    cursor = conn.cursor()
    cursor._inner = Cursor(conn._inner)
    with pytest.raises(DeadlineExceeded), deadline.limit(1.0):
        try:
            cursor.execute("insert into t values (block(2.1))")
        finally:
            conn.rollback()
    assert len(cancelled) == 1
    assert cancelled[0] != get_ident()
    assert conn.execute("select count(*) from t").fetchval() == 0
