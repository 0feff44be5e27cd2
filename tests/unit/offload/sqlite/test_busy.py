"""greenline.offload.sqlite.busy: locks are waited for in the hub, as long as sqlite would."""

import gc
import sqlite3
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from greenlet import getcurrent

from greenline.hub.deadline import wait_in
from greenline.hub.handlers import Handlers, NativeHandler
from greenline.hub.thread_locks import SimpleQueue
from greenline.hub.turns import page_of
from greenline.offload import threads
from greenline.offload.sqlite import busy, connection
from greenline.offload.sqlite.connection import ThreadedConnection
from tests.helpers.script import run
from tests.helpers.support import wait_until
from tests.unit.offload.sqlite.table import rows


def held_up(work: Any, *args: Any) -> "gevent.Greenlet[..., Any]":
    """Start *work* and return when it waits for a lock."""
    waiting = gevent.spawn(work, *args)
    wait_until(lambda: busy.waiting or waiting.ready(), "it to wait")
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
    wait_until(lambda: all(each.is_idle for each in list(threads._alive)), "idle threads", 20)
    other.execute("commit")
    waiting.get(timeout=15)


@pytest.mark.parametrize(
    "statement", ["select * from text where text match 'one'", "insert into text values ('two')"]
)
def test_a_virtual_table_is_waited_for(
    conn: sqlite3.Connection, other: sqlite3.Connection, statement: str
) -> None:
    """The first statement that uses a table of FTS5 reads its settings, and waits for the lock."""
    other.execute("create virtual table text using fts5(words)")
    assert rows(conn) == [1]  # it has read the schema
    other.execute("begin exclusive")
    waiting = held_up(conn.execute, statement)
    other.execute("commit")
    waiting.get(timeout=15)


def test_a_commit_waits_for_readers(conn: sqlite3.Connection, other: sqlite3.Connection) -> None:
    """A reader in a transaction is in the way of a commit, which succeeds afterwards."""
    other.execute("begin")
    assert rows(other) == [1]
    conn.execute("insert into row values (2)")
    waiting = held_up(conn.commit)
    other.execute("commit")
    waiting.get(timeout=15)
    assert rows(other) == [1, 2]


def test_a_commit_that_waits_for_readers_needs_no_hub(
    path: Path, conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it has ended, each transaction that has read and begins to write fails."""
    reader = connection._Connection(path, isolation_level=None)
    reader.execute("begin")
    assert rows(reader) == [1]
    conn.execute("begin")
    conn.execute("insert into row values (2)")
    found: list[Any] = []

    def note(*args: Any, **kwargs: Any) -> bool:
        found.append(args)
        return busy.would_wait(*args, **kwargs)

    monkeypatch.setattr(connection, "would_wait", note)
    monkeypatch.setattr(connection, "COMMIT_WAIT_S", 30.0)
    waiting = gevent.spawn(conn.commit)
    wait_until(lambda: found, "the commit")
    reader.execute("commit")
    until_s = time.monotonic() + 15
    while rows(reader) == [1] and time.monotonic() < until_s:
        threads.native.sleep(0.001)  # no greenlet runs
    assert rows(reader) == [1, 2]
    reader.close()
    waiting.get(timeout=15)


def test_a_script_that_finds_the_database_locked_waits(
    conn: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """A script cannot be tried again from its middle."""
    other.execute("begin exclusive")
    waiting = gevent.spawn(conn.executescript, "begin immediate; insert into row values (2); end")
    gevent.sleep(0.2)
    other.execute("commit")
    waiting.get(timeout=15)
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


def test_what_the_last_transaction_has_read_does_not_count(
    path: Path, other: sqlite3.Connection
) -> None:
    """Setting the isolation level ends one, as Tryton does where it has read."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level="IMMEDIATE")) as conn:
        conn.execute("begin")
        assert rows(conn) == [1]
        conn.isolation_level = None
        other.execute("begin immediate")
        waiting = held_up(conn.execute, "insert into row values (2)")
        other.execute("commit")
        waiting.get(timeout=15)


def test_a_savepoint_alone_reads_nothing(
    conn: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """Nested atomic blocks, as Django has them, wait for the lock of their first statement."""
    other.execute("begin immediate")
    conn.execute("begin")
    conn.execute("savepoint one")
    waiting = held_up(conn.execute, "insert into row values (2)")
    other.execute("rollback")
    waiting.get(timeout=15)


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
    waiting.kill(timeout=15)
    other.execute("commit")
    assert not busy.waiting
    conn.execute("begin immediate")
    conn.rollback()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="legacy"),
        pytest.param(
            {"autocommit": False},
            id="autocommit",
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="new in Python 3.12"),
        ),
    ],
)
def test_writers_get_the_lock_in_the_order_in_which_they_ask(
    path: Path,
    other: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    """Those that come later do not even try; they would only find the database locked."""
    attempts: list[int] = []
    written: list[int] = []
    attempt = ThreadedConnection._attempt

    def count(conn: Any, *args: Any) -> Any:
        if args[2].changes:
            attempts.append(1)
        return attempt(conn, *args)

    conns = [sqlite3.connect(path, timeout=30, **options) for _ in range(10)]

    def write(number: int) -> None:
        conns[number].execute("insert into row values (?)", (number,))
        written.append(number)
        conns[number].commit()

    monkeypatch.setattr(ThreadedConnection, "_attempt", count)
    pause_s = busy.FIRST_RETRY_S
    monkeypatch.setattr(busy, "FIRST_RETRY_S", 20.0)  # none tries again without being woken
    monkeypatch.setattr(busy, "LAST_RETRY_S", 20.0)
    other.execute("begin immediate")
    writers = []
    for number in range(10):
        writers.append(gevent.spawn(write, number))
        wait_until(lambda: len(next(iter(busy.waiting.values()), ())) == len(writers), "the wait")
    assert len(attempts) == 1
    monkeypatch.setattr(busy, "FIRST_RETRY_S", pause_s)  # of a commit that meets an attempt
    other.execute("commit")
    gevent.joinall(writers, timeout=15, raise_error=True)
    assert written == list(range(10))
    for conn in conns:
        conn.close()


@pytest.fixture
def only_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """None tries again without being woken."""
    monkeypatch.setattr(busy, "FIRST_RETRY_S", 20.0)
    monkeypatch.setattr(busy, "LAST_RETRY_S", 20.0)


@pytest.mark.usefixtures("only_woken")
def test_a_writer_that_leaves_wakes_the_next_one(
    path: Path, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been woken, and nothing else would wake the next one soon."""

    def killed_when_woken(*args: Any) -> None:
        wait_in(*args)
        # By kill() it might have the lock before.
        if getcurrent() is leaving:
            raise gevent.GreenletExit

    monkeypatch.setattr(busy, "wait_in", killed_when_woken)
    other.execute("begin immediate")
    with closing(sqlite3.connect(path, timeout=30)) as first:
        leaving = held_up(first.execute, "begin immediate")
        with closing(sqlite3.connect(path, timeout=30)) as second:
            waiting = gevent.spawn(second.execute, "begin immediate")
            wait_until(lambda: len(next(iter(busy.waiting.values()))) == 2, "the second one")
            other.execute("commit")
            leaving.join(timeout=15)
            waiting.get(timeout=15)


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    """Return handlers, which run requests."""
    made = Handlers()
    yield made
    busy.holds.clear()
    busy.upgrades.clear()
    busy.with_log.clear()


@pytest.mark.usefixtures("only_woken")
def test_a_short_writer_goes_before_long_ones_as_long_as_these_hold_the_lock(
    path: Path,
    other: sqlite3.Connection,
    handlers: Handlers,
) -> None:
    """A login does not wait for twenty uploads, and no upload for more logins than take as long."""
    held = {"/long": 0.4, "/short": 0.1, "/other": 0.11}
    for page, held_s in held.items():
        busy.note_hold(str(path), page_of("POST", page), held_s)
    written: list[str] = []
    conns = []

    def write(request: Any) -> None:
        conn = sqlite3.connect(path, timeout=30, isolation_level=None)
        conns.append(conn)
        conn.execute("begin immediate")
        written.append(request.path)
        conn.execute("commit")

    other.execute("begin immediate")
    asked = ["/long", "/new", "/long", "/other", "/long", *["/short"] * 5]
    writers = []
    for page in asked:
        request = SimpleNamespace(method="POST", path=page)
        writers.append(gevent.spawn(handlers.run, write, request, request=request))
        wait_until(lambda: len(next(iter(busy.waiting.values()), ())) == len(writers), "the wait")
    other.execute("commit")
    gevent.joinall(writers, timeout=15, raise_error=True)
    # Not before one that is not known, nor before one that takes as long.
    assert written == ["/long", "/new", "/long", "/other", *["/short"] * 4, "/long", "/short"]
    for conn in conns:
        conn.close()


@pytest.mark.usefixtures("only_woken")
def test_one_that_is_known_to_be_long_since_it_waits_lets_short_ones_go_first(
    path: Path,
    other: sqlite3.Connection,
    handlers: Handlers,
) -> None:
    """Twenty that arrive at once are none of them known; nor is a thread of the application."""
    written: list[str] = []

    def write(name: str) -> None:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as conn:
            conn.execute("begin immediate")
            written.append(name)
            conn.execute("commit")

    def write_of(request: Any) -> None:
        write(request.path)

    other.execute("begin immediate")
    writers = []
    for page in ("/long", "thread", "/short"):
        if page == "/short":
            busy.holds.clear()  # that of the thread has made the table
            busy.note_hold(str(path), busy.OTHERS, 0.4)
            busy.note_hold(str(path), page_of("POST", "/long"), 0.4)
            busy.note_hold(str(path), page_of("POST", page), 0.1)
        request = SimpleNamespace(method="POST", path=page)
        run = (write, page) if page == "thread" else (handlers.run, write_of, request)
        options = {} if page == "thread" else {"request": request}
        writers.append(gevent.spawn(*run, **options))
        wait_until(lambda: len(next(iter(busy.waiting.values()), ())) == len(writers), "the wait")
    other.execute("commit")
    gevent.joinall(writers, timeout=15, raise_error=True)
    assert written == ["/short", "/long", "thread"]


COUNT = "select number from row"


def change(path: Path, pause_s: float = 0.0, read: Any = lambda: None) -> None:
    """Read and write in one transaction; *read* is called between the two."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as conn:
        conn.execute("begin")
        (number,) = conn.execute(COUNT).fetchone()
        read()
        gevent.sleep(pause_s)
        conn.execute("update row set number = ?", (number + 1,))
        conn.execute("commit")


def ask(handlers: Handlers, page: str, work: Any, *args: Any) -> "gevent.Greenlet[..., Any]":
    """Start *work* as the request of a page."""
    request = SimpleNamespace(method="POST", path=page)
    return gevent.spawn(handlers.run, lambda _: work(*args), request, request=request)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction may take long until it writes: the machine may be busy."""
    monkeypatch.setattr(busy, "MAX_READ_S", 30.0)
    monkeypatch.setattr(busy, "MAX_LOG_READ_S", 30.0)


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.usefixtures("patience")
def test_transactions_that_read_and_write_go_one_after_the_other(
    path: Path, other: sqlite3.Connection, handlers: Handlers, mode: str
) -> None:
    """sqlite would refuse all but one of those that have read when it writes."""
    other.execute(f"pragma journal_mode={mode}")
    ask(handlers, "/count", change, path).get(timeout=15)  # from now on it is known
    asked = [ask(handlers, "/count", change, path, 0.01) for _ in range(10)]
    gevent.joinall(asked, timeout=30, raise_error=True)
    assert rows(other) == [12]


@pytest.mark.usefixtures("patience")
def test_a_writer_waits_for_one_that_has_read_and_is_to_write(
    path: Path, other: sqlite3.Connection, handlers: Handlers
) -> None:
    """It would have the lock that the other one needs, and could not commit before its end."""
    ask(handlers, "/count", change, path).get(timeout=15)
    begun: list[Any] = []

    def insert() -> None:
        other.execute("begin immediate")
        other.execute("insert into row values (9)")
        other.execute("commit")

    def begin_to_insert() -> None:
        begun.append(held_up(insert))

    ask(handlers, "/count", change, path, 0.0, begin_to_insert).get(timeout=15)
    begun[0].get(timeout=15)
    assert rows(other) == [3, 9]


def test_a_page_that_is_not_known_to_write_reads_at_once(
    path: Path, other: sqlite3.Connection, handlers: Handlers
) -> None:
    """Its transaction has no turn to wait for, whoever writes."""
    other.execute("begin immediate")
    other.execute("insert into row values (2)")

    def read() -> list[Any]:
        with closing(sqlite3.connect(path, timeout=0.01, isolation_level=None)) as conn:
            conn.execute("begin")
            found = conn.execute(COUNT).fetchall()
            conn.execute("commit")
            return found

    found: list[Any] = []
    ask(handlers, "/read", lambda: found.extend(read())).get(timeout=15)
    assert found == [(1,)]
    other.execute("commit")


def test_one_that_has_read_loses_its_turn_where_it_does_not_write(
    path: Path, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for the other one."""
    ask(handlers, "/count", change, path).get(timeout=15)

    def read() -> None:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as conn:
            conn.execute("begin")
            conn.execute(COUNT).fetchall()
            conn.execute("commit")

    def wait_for_another() -> None:
        monkeypatch.setattr(busy, "MAX_READ_S", 0.05)
        ask(handlers, "/count", read).get(timeout=15)

    ask(handlers, "/count", change, path, 0.0, wait_for_another).get(timeout=15)


def test_only_pages_that_write_soon_and_often_have_turns() -> None:
    """With a write-ahead log others could commit meanwhile, so that it must be sooner."""
    page = "POST", 1, "/count"

    def share(*after: float | None) -> float:
        busy.upgrades.clear()
        for after_s in after:
            busy.note_upgrade("rows.db", page, COUNT, after_s)
        return busy.upgrade_share("rows.db", page, COUNT)

    assert share() == share(None) == 0
    assert share(0.1) == share(0.1, 0.1) == 1
    assert 0.2 < share(0.1, None, None, None, None) < 0.4
    assert share(0.1, None, None, None, None, None) == 0
    assert share(0.6) == 0
    busy.with_log.add("rows.db")
    assert share(0.1) == 0
    assert share(0.01) == 1
    busy.with_log.clear()
    busy.upgrades.clear()


@pytest.mark.usefixtures("patience")
def test_a_connection_that_was_forgotten_has_no_turn(path: Path, handlers: Handlers) -> None:
    """It was collected as garbage within its transaction."""
    ask(handlers, "/count", change, path).get(timeout=15)

    def forget() -> None:
        conn = sqlite3.connect(path, timeout=30, isolation_level=None)
        conn.execute("begin")
        conn.execute(COUNT).fetchone()
        assert len(busy.writers[str(path)]) == 1

    with warnings.catch_warnings(action="ignore"):
        ask(handlers, "/count", forget).get(timeout=15)
        gc.collect()
    started_s = time.monotonic()
    ask(handlers, "/count", change, path).get(timeout=15)
    assert time.monotonic() - started_s < 10
    assert not busy.writers[str(path)]


@pytest.mark.usefixtures("only_woken", "patience")
def test_an_error_that_ends_a_transaction_wakes_the_next_one(
    path: Path, conn: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """So does one of a statement that is a transaction by itself."""
    other.execute("create table single (number unique)")
    other.execute("insert into single values (1)")
    other.execute("begin immediate")
    waiting = held_up(conn.execute, "insert into single values (2)")
    with pytest.raises(sqlite3.IntegrityError):
        other.execute("insert or rollback into single values (1)")
    waiting.get(timeout=15)


def test_writers_queue_that_have_begun_by_a_statement(
    path: Path, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that has only begun holds no lock: its first change waits like any other."""
    attempts: list[str] = []
    attempt = ThreadedConnection._attempt

    def note(conn: Any, *args: Any) -> Any:
        attempts.append(args[2].keyword)
        return attempt(conn, *args)

    conns = [sqlite3.connect(path, timeout=30, isolation_level=None) for _ in range(5)]
    written: list[int] = []

    def write(number: int) -> None:
        conns[number].execute("begin")
        conns[number].execute("savepoint one")
        conns[number].execute("insert into row values (?)", (number,))
        written.append(number)
        conns[number].execute("commit")

    other.execute("begin immediate")
    pause_s = busy.FIRST_RETRY_S
    monkeypatch.setattr(busy, "FIRST_RETRY_S", 20.0)  # none tries again without being woken
    monkeypatch.setattr(busy, "LAST_RETRY_S", 20.0)
    monkeypatch.setattr(ThreadedConnection, "_attempt", note)
    writers = []
    for number in range(5):
        writers.append(gevent.spawn(write, number))
        wait_until(lambda: len(next(iter(busy.waiting.values()), ())) == len(writers), "the wait")
    assert attempts.count("INSERT") == 1
    monkeypatch.setattr(busy, "FIRST_RETRY_S", pause_s)
    other.execute("commit")
    gevent.joinall(writers, timeout=15, raise_error=True)
    assert written == list(range(5))
    for conn in conns:
        conn.close()


def test_the_end_of_a_savepoint_is_no_end_of_the_transaction(
    path: Path, conn: sqlite3.Connection
) -> None:
    """It has the lock on."""
    conn.execute("begin immediate")
    conn.execute("savepoint one")
    conn.execute("insert into row values (2)")
    conn.execute("rollback to one")
    assert conn.has_write_lock()  # type: ignore[attr-defined]
    assert len(busy.writers[str(path)]) == 1
    conn.rollback()
    assert not busy.writers[str(path)]


def test_what_a_thread_does_stands_for_its_page(handlers: Handlers) -> None:
    """Of a request in a native thread its page is known there as well."""
    request = SimpleNamespace(method="POST", path="/short")
    found: list[Any] = []

    def find(_: Any) -> None:
        me: Any = getcurrent()
        found.append(busy.page())
        found.append(NativeHandler(me, SimpleQueue(), False).switch(busy.page))

    handlers.run(find, request, request=request)
    assert found == [page_of("POST", "/short")] * 2
    assert busy.page() == busy.OTHERS
    thread = gevent.Greenlet(busy.page)
    thread.task = SimpleNamespace(page=("thread", 0, "send"))
    thread.start()
    assert thread.get(timeout=5) == ("thread", 0, "send")


def test_the_time_in_which_a_page_holds_the_lock_is_known(path: Path, handlers: Handlers) -> None:
    """From where its transaction gets the lock to its end, however it ends."""

    def write(request: Any) -> None:
        with closing(sqlite3.connect(path, timeout=30)) as conn:
            if request.path == "/reading":
                conn.execute("begin")
                rows(conn)
                gevent.sleep(1.1)
            conn.execute("insert into row values (2)")
            gevent.sleep(0.05)
            if request.path == "/failing":
                return
            conn.commit()
            gevent.sleep(1.1)

    for page in ("/long", "/failing", "/reading"):
        request = SimpleNamespace(method="POST", path=page)
        handlers.run(write, request, request=request)
        assert busy.holds[str(path), page_of("POST", page)] > 0.04
    for page in ("/long", "/reading"):
        assert busy.holds[str(path), page_of("POST", page)] < 1.1


def test_a_forked_child_waits_for_none_of_its_parents_connections() -> None:
    """The connections that wait for the lock in the parent never leave the child's queue."""
    lines = run("""
import sqlite3
from greenline.offload.sqlite import busy

def main():
    with busy.Retries("rows.db", "BEGIN"):
        tell(busy.must_queue("rows.db", is_quick=False))
        conn = sqlite3.connect("file:rows?mode=memory&cache=shared", uri=True)
        conn.execute("begin immediate")
        tell(any(busy.writers.values()))
        child = os.fork()
        if child == 0:
            tell(busy.must_queue("rows.db", is_quick=False) or any(busy.writers.values()))
            os._exit(0)
        os.waitpid(child, 0)
""")
    assert lines == ["True", "True", "False"]
