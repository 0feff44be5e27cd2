"""greenline.offload.sqlite.connection: interrupts, threads, and sqlite3's own tests."""

import gc
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import gevent
import pytest

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.offload import sqlite, threads
from greenline.offload.sqlite.quick import measured
from tests.helpers.support import CHECKOUT, IS_LONG, wait_until
from tests.unit.offload.sqlite.table import rows

FOREVER = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"


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
    conn.execute("begin immediate")
    with pytest.raises(DeadlineExceeded), deadline.limit(0.2):
        try:
            conn.execute(FOREVER)
        finally:
            conn.rollback()
            conn.close()
    other.execute("begin immediate")


def test_a_connection_can_be_closed_again_after_an_interruption(
    conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = threads.OwnThread.call

    def interrupted(*args: Any, **kwargs: Any) -> None:
        call(*args, **kwargs)
        raise DeadlineExceeded

    conn.executescript("create table changed (a); insert into changed values (1)")
    with monkeypatch.context() as patch:
        patch.setattr(threads.OwnThread, "call", interrupted)
        with pytest.raises(DeadlineExceeded):
            conn.close()
    conn.close()


def test_the_end_of_no_transaction_needs_no_thread(
    conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of ``with conn:`` around a query; one that has written is ended in the thread."""
    called: list[str] = []
    call = threads.OwnThread.call

    def count(own: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        called.append((args[2] if function is measured else function).__name__)
        return call(own, function, *args, **kwargs)

    monkeypatch.setattr(threads.OwnThread, "call", count)
    conn.commit()
    conn.rollback()
    assert called == []
    conn.execute("insert into row values (2)")
    called.clear()
    conn.rollback()
    assert called == ["rollback"]
    conn.execute("insert into row values (3)")
    called.clear()
    conn.commit()
    assert called == ["commit_repeatedly"]
    assert rows(conn) == [1, 3]
    conn.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        conn.commit()


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
        assert isinstance(mine, sqlite.ThreadedConnection)
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


def test_an_offloaded_call_is_none_of_a_foreign_thread(path: Path) -> None:
    """It uses connections of its greenlet, and opens some; so does a function of another one."""
    conn, other = sqlite3.connect(path), sqlite3.connect(path)

    def count() -> int:
        found: int = conn.execute("select count(*) from sqlite_master").fetchone()[0]
        return found

    other.create_function("counted", 0, count)
    assert threads.run(count) == other.execute("select counted()").fetchone()[0] == 1
    assert threads.run(sqlite3.connect, path).execute("select 1").fetchone() == (1,)


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
from greenline.patch import patch_all; patch_all()
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
