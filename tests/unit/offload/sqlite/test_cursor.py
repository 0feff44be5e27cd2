"""greenline.offload.sqlite.cursor: rows and parameters are as without threads."""

import contextvars
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gevent
import pytest

from greenline.offload.sqlite import cursor as cursor_module
from greenline.offload.threads import OwnThread, native
from tests.unit.offload.sqlite.table import rows


def test_rows_are_made_in_the_callers_greenlet(conn: sqlite3.Connection) -> None:
    """Row factories may do what the greenlet may, and be changed between rows."""
    asking = gevent.getcurrent()
    conn.executemany("insert into row values (?)", [(number,) for number in range(2, 301)])

    def factory(cursor: sqlite3.Cursor, row: Any) -> Any:
        assert gevent.getcurrent() is asking
        gevent.sleep(0)
        return row[0]

    conn.row_factory = factory
    cursor = conn.execute("select number from row order by number")
    assert [cursor.fetchone(), *cursor.fetchmany(3)] == [1, 2, 3, 4]
    assert next(cursor) == 5
    cursor.row_factory = sqlite3.Row
    assert cursor.fetchone()["number"] == 6
    assert [row["number"] for row in cursor] == list(range(7, 301))
    assert cursor.fetchone() is None
    assert cursor.fetchall() == []


def test_functions_see_the_callers_context_variables(conn: sqlite3.Connection) -> None:
    """A function may log, wait and ask for the current request."""
    request = contextvars.ContextVar[str]("request")
    request.set("this one")

    def who() -> str:
        time.sleep(0.01)
        return request.get()

    conn.create_function("who", 0, who)
    for _ in range(5):
        assert conn.execute("select who()").fetchone() == ("this one",)


def test_parameters_may_come_from_an_iterator_that_waits(conn: sqlite3.Connection) -> None:
    """It runs in the caller's greenlet; an error of its own comes after the rows before it."""
    asking = gevent.getcurrent()

    def numbers() -> Iterator[tuple[int]]:
        for number in range(2, 2502):
            assert gevent.getcurrent() is asking
            if number % 1000 == 0:
                gevent.sleep(0)
            yield (number,)

    assert conn.executemany("insert into row values (?)", numbers()).rowcount == 2500
    assert rows(conn) == list(range(1, 2502))

    def broken() -> Iterator[tuple[int]]:
        yield (9000,)
        raise LookupError

    with pytest.raises(LookupError):
        conn.executemany("insert into row values (?)", broken())
    assert 9000 in rows(conn)


@pytest.mark.parametrize("is_attribute", [False, True], ids=["isolation_level", "autocommit"])
def test_rows_that_are_committed_one_by_one_are_written_once(
    conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, is_attribute: bool
) -> None:
    """A lock between two of them is waited for by sqlite: another run would repeat the first."""
    if is_attribute:  # of Python 3.12
        monkeypatch.setattr(type(conn), "autocommit", True, raising=False)
    else:
        conn.isolation_level = None
    waits: list[Any] = []
    wait = type(conn)._waiting_in_sqlite  # type: ignore[attr-defined]
    monkeypatch.setattr(
        type(conn), "_waiting_in_sqlite", lambda *args: (waits.append(args), wait(*args))
    )
    conn.executemany("insert into row values (?)", [(2,), (3,)])
    assert len(waits) == 1


def test_few_hand_overs_read_many_rows(
    conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time more rows are read ahead, because a hand-over costs more than a hundred of them."""
    monkeypatch.setattr(cursor_module, "AHEAD_S", 60.0)
    conn.executemany("insert into row values (?)", [(number,) for number in range(2, 8001)])
    cursor = conn.execute("select number from row order by number")
    with monkeypatch.context() as patch:
        calls = []
        call = OwnThread.call
        patch.setattr(
            OwnThread, "call", lambda *args, **kwargs: calls.append(1) or call(*args, **kwargs)
        )
        assert [number for (number,) in cursor] == list(range(1, 8001))
    assert len(calls) < 20


@pytest.mark.parametrize("broken", [2, 5, 90, 101, 450])
def test_rows_before_an_error_are_read(conn: sqlite3.Connection, broken: int) -> None:
    """An error of a row that was read ahead is raised where the application reads that row."""
    conn.executemany("insert into row values (?)", [(number,) for number in range(2, 1001)])
    conn.execute("create table texts (number integer, text text)")
    conn.execute("insert into texts select number, 'one' from row")
    conn.execute("update texts set text = cast(x'ff' as text) where number = ?", (broken,))
    cursor = conn.execute("select number, text from texts order by number")
    for number in range(1, broken):
        assert cursor.fetchone() == (number, "one")
    with pytest.raises(sqlite3.OperationalError, match="decode"):
        cursor.fetchone()


def test_rows_read_ahead_belong_to_the_thread_and_the_connection(
    conn: sqlite3.Connection, path: Path
) -> None:
    """Neither another native thread nor a closed connection has the rows that are ahead."""
    conn.execute("insert into row values (2)")
    cursor = conn.execute("select number from row")
    assert cursor.fetchone() == (1,)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            cursor.fetchone()
        except sqlite3.ProgrammingError as error:
            errors.append(error)
        done.append(1)

    done: list[int] = []
    native.start_new_thread(read, ())
    while not done:
        native.sleep(0.001)
    assert len(errors) == 1
    with closing(sqlite3.connect(path)) as other:
        rest = other.execute("select number from row")
    with pytest.raises(sqlite3.ProgrammingError):
        next(rest)
    assert cursor.fetchone() == (2,)
