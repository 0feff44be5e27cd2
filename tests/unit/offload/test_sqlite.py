"""sqlite3 behind its threads: its locks, its rows and its callbacks are as without them."""

import contextvars
import gc
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gevent
import pytest

from greenline import deadline
from greenline.errors import DeadlineExceeded
from greenline.offload import sqlite, threads
from tests.support import CHECKOUT, wait_until

IS_LONG = os.environ.get("GREENLINE_LONG_TESTS") == "1"
FOREVER = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
SLOW = f"select * from ({FOREVER.replace('from n)', 'from n where i < ?)')})"


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


def rows(conn: sqlite3.Connection) -> list[int]:
    return [number for (number,) in conn.execute("select number from row order by number")]


def held_up(work: Any, *args: Any) -> "gevent.Greenlet[..., Any]":
    """Start *work* and return when it waits for a lock."""
    waiting = gevent.spawn(work, *args)
    wait_until(lambda: sqlite._waiting or waiting.ready(), "it to wait")
    assert not waiting.ready()
    return waiting


@pytest.mark.parametrize(
    "statement",
    ["insert into row values (2)", "/* a comment */ begin immediate", "select number from row"],
)
def test_a_locked_database_is_waited_for_in_the_hub(
    conn: sqlite3.Connection, other: sqlite3.Connection, statement: str
) -> None:
    """The statement succeeds when the other greenlet commits; no thread waits meanwhile."""
    other.execute("begin exclusive")
    waiting = held_up(conn.execute, statement)
    gevent.sleep(0.1)
    # One may be at work for a moment: the statement is tried again from time to time.
    wait_until(lambda: all(each.is_idle for each in list(threads._alive)), "idle threads", 1)
    other.execute("commit")
    waiting.get(timeout=5)


def test_a_commit_waits_for_readers(conn: sqlite3.Connection, other: sqlite3.Connection) -> None:
    """A reader in a transaction is in the way of a commit, which succeeds afterwards."""
    other.execute("begin")
    assert rows(other) == [1]
    conn.execute("insert into row values (2)")
    waiting = held_up(conn.commit)
    other.execute("commit")
    waiting.get(timeout=5)
    assert rows(other) == [1, 2]


def test_a_script_that_finds_the_database_locked_waits(
    conn: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """A script cannot be tried again from its middle."""
    other.execute("begin exclusive")
    waiting = gevent.spawn(conn.executescript, "begin immediate; insert into row values (2); end")
    gevent.sleep(0.2)
    other.execute("commit")
    waiting.get(timeout=5)
    assert rows(conn) == [1, 2]


@pytest.mark.parametrize("statement", ["insert into row values (2)", "begin immediate"])
def test_the_wait_ends_at_the_timeout(
    path: Path, other: sqlite3.Connection, statement: str
) -> None:
    """As sqlite says it: database is locked."""
    other.execute("begin immediate")
    with closing(sqlite3.connect(path, timeout=0.3)) as conn:
        started_s = time.monotonic()
        with pytest.raises(sqlite3.OperationalError, match=r"^database is locked$"):
            conn.execute(statement)
        assert 0.25 < time.monotonic() - started_s < 3


def test_a_pragma_sets_the_timeout(path: Path, other: sqlite3.Connection) -> None:
    """``PRAGMA busy_timeout`` returns what was set, and counts."""
    with closing(sqlite3.connect(path, timeout=30)) as conn:
        assert conn.execute("PRAGMA busy_timeout").fetchone() == (30000,)
        assert conn.execute("pragma Busy_Timeout = 200").fetchone() == (200,)
        assert conn.execute("PRAGMA busy_timeout").fetchone() == (200,)
        other.execute("begin immediate")
        started_s = time.monotonic()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            conn.execute("begin immediate")
        assert time.monotonic() - started_s < 5


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_reader_that_cannot_become_a_writer_is_refused_at_once(
    conn: sqlite3.Connection, other: sqlite3.Connection, mode: str
) -> None:
    """Both would wait for each other: sqlite does not wait, and its answer comes as it is."""
    other.execute(f"pragma journal_mode={mode}")
    conn.execute("begin")
    assert rows(conn) == [1]
    other.execute("begin immediate")
    other.execute("insert into row values (2)")
    started_s = time.monotonic()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        conn.execute("insert into row values (3)")
    assert time.monotonic() - started_s < 5
    conn.rollback()
    other.execute("commit")


def test_a_savepoint_alone_reads_nothing(
    conn: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """Nested atomic blocks, as Django has them, wait for the lock of their first statement."""
    other.execute("begin immediate")
    conn.execute("begin")
    conn.execute("savepoint one")
    waiting = held_up(conn.execute, "insert into row values (2)")
    other.execute("rollback")
    waiting.get(timeout=5)


def test_a_snapshot_that_is_too_old_is_refused_at_once(
    conn: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """No wait makes a snapshot new again."""
    other.execute("pragma journal_mode=wal")
    conn.execute("begin")
    rows(conn)
    other.execute("insert into row values (2)")
    started_s = time.monotonic()
    with pytest.raises(sqlite3.OperationalError) as caught:
        conn.execute("insert into row values (3)")
    assert caught.value.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT"
    assert time.monotonic() - started_s < 5


def test_a_greenlet_that_is_killed_while_it_waits_leaves_cleanly(
    conn: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """The connection serves on."""
    other.execute("begin immediate")
    waiting = held_up(conn.execute, "begin immediate")
    waiting.kill(timeout=5)
    other.execute("commit")
    assert not sqlite._waiting
    conn.execute("begin immediate")
    conn.rollback()


def test_a_statement_is_interrupted_with_its_greenlet(conn: sqlite3.Connection) -> None:
    """It does not run on in the thread, and the connection is free when the greenlet goes on."""
    with gevent.Timeout(0.1, False):
        conn.execute(FOREVER)
        pytest.fail("it ended")
    assert conn._own.is_idle  # type: ignore[attr-defined]
    assert rows(conn) == [1]


def test_what_cleans_up_runs_after_the_deadline(
    conn: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """Otherwise the lock would be held by a request that is over."""
    with pytest.raises(DeadlineExceeded), deadline.limit(0.2):
        conn.execute("begin immediate")
        try:
            conn.execute(FOREVER)
        finally:
            conn.rollback()
            conn.close()
    other.execute("begin immediate")


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


def test_a_query_that_becomes_slow_does_not_block_the_hub(conn: sqlite3.Connection) -> None:
    """It was quick before and ran in the greenlet: beyond the limit the thread begins it again."""
    for _ in range(10):
        assert conn.execute(SLOW, (3,)).fetchone() == (3,)
    assert conn._paces[SLOW] >= sqlite.MIN_QUICK_RUNS  # type: ignore[attr-defined]
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0.001)

    counting = gevent.spawn(count)
    gevent.sleep(0)
    assert conn.execute(SLOW, (1_000_000,)).fetchone() == (1_000_000,)
    counting.kill()
    assert turns > 5
    assert conn._paces[SLOW] < 0  # type: ignore[attr-defined]


def test_the_classes_are_sqlite3s(conn: sqlite3.Connection) -> None:
    """Subclasses and factories of the application have the same threads."""

    class Mine(sqlite3.Connection):
        pass

    class Wrapper(sqlite3.Cursor):
        def execute(self, sql: str, *args: Any) -> "Wrapper":
            super().execute(sql.replace("%s", "?"), *args)
            return self

    with closing(sqlite3.connect(":memory:", factory=Mine)) as mine:
        assert type(mine) is Mine
        assert isinstance(conn, sqlite3.Connection)
        assert isinstance(mine, sqlite.Connection)
        assert mine.cursor(Wrapper).execute("select %s", (7,)).fetchone() == (7,)
        assert mine.cursor(factory=Wrapper).execute("select %s", (7,)).fetchall() == [(7,)]
        with mine:
            mine.execute("create table t (a)")
            mine.execute("insert into t values (1)")
        assert list(mine.iterdump())[-2:] == ['INSERT INTO "t" VALUES(1);', "COMMIT;"]
        with pytest.raises(sqlite3.ProgrammingError, match="Incorrect number of bindings"):
            mine.execute("select ?")
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        mine.execute("select 1")


def test_a_foreign_native_thread_is_refused(conn: sqlite3.Connection) -> None:
    """As ``check_same_thread`` says; greenlets of one thread may share a connection."""
    with pytest.raises(sqlite3.ProgrammingError, match="created in a thread"):
        gevent.get_hub().threadpool.apply(conn.execute, ("select 1",))
    assert gevent.spawn(rows, conn).get() == [1]


def test_threads_of_connections_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each of two hundred open connections, and few for those that are gone."""
    opened = [sqlite3.connect(path) for _ in range(200)]
    for each in opened:
        each.execute("select 1")
    assert len(threads._alive) <= threads.MAX_KEPT + 1
    for each in opened[:100]:
        each.close()
    del opened, each
    gc.collect()
    wait_until(lambda: len(threads._alive) <= threads.MAX_IDLE + 2, "the threads to end")


def test_a_child_of_fork_has_threads_of_its_own(path: Path) -> None:
    """The parent's threads do not live on in it."""
    code = f"""
from greenline.patching import patch_all; patch_all()
import os, sqlite3
conn = sqlite3.connect({str(path)!r})
pid = os.fork()
if not pid:
    os._exit(0 if sqlite3.connect({str(path)!r}).execute("select 7").fetchone() == (7,) else 1)
print(os.waitpid(pid, 0)[1], conn.execute("select 8").fetchone()[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, cwd=CHECKOUT
    )
    assert (done.stdout, done.stderr) == ("0 8\n", "")


# What the standard library's own tests see of the threads, and why.
EXPLAINED = {
    "test_connection_reinit": "rows that were read ahead have the text factory of before",
    "test_recursive_cursor_iter": "a row that was read ahead may be fetched in a converter",
    "test_recursive_cursor_use": "an iterator of parameters runs before the statement",
}
SUITE = """
import gevent.monkey; gevent.monkey.patch_all()
import sys, unittest
if sys.argv[1] == "ours":
    from greenline import offload; offload.patch()
from test import test_sqlite3
folder = test_sqlite3.__path__[0]
top = folder.rsplit("/test/", 1)[0]
result = unittest.TestResult()
unittest.defaultTestLoader.discover(folder, top_level_dir=top).run(result)
print(result.testsRun, file=sys.stderr)
for test, _ in result.failures + result.errors:
    test = getattr(test, "test_case", test)
    print(test.id().rpartition(".")[2])
"""


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 runs sqlite3's own tests")
def test_the_standard_librarys_own_tests_pass() -> None:
    """Those that pass with gevent alone, with the exceptions that are explained here."""
    pytest.importorskip("test.test_sqlite3")
    failed = {}
    for whose in ("gevent", "ours"):
        done = subprocess.run(
            [sys.executable, "-c", SUITE, whose],
            capture_output=True, text=True, timeout=300, cwd=CHECKOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        failed[whose] = set(done.stdout.split())
    assert failed["ours"] - failed["gevent"] == set(EXPLAINED)
