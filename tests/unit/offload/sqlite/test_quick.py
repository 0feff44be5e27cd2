"""greenline.offload.sqlite.quick: what is slow, or waits for the disk, runs in the thread."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import thread_time
from typing import Any

import gevent
import pytest

from greenline.offload import threads
from greenline.offload.sqlite import connection, quick
from greenline.offload.sqlite.connection import _ask
from greenline.offload.sqlite.quick import MAX_BLOCK_S, MAX_SIZE, MIN_QUICK_RUNS, QUICK_S
from greenline.offload.sqlite.statement import COMMIT, parse
from tests.unit.offload.sqlite.table import rows

FOREVER = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
COUNT = FOREVER.replace("from n)", "from n where i < ?)")
SLOW = f"select * from ({COUNT})"
commit: Any = connection._Connection.commit
SLOW_UPDATE = f"update row set number = ({COUNT})"
INSERT = "insert into row values (?)"


@pytest.fixture
def turns() -> Iterator[Callable[[], int]]:
    """Return a function that tells how often another greenlet has run."""
    number = 0

    def count() -> None:
        nonlocal number
        while True:
            number += 1
            gevent.sleep(0.001)

    counting = gevent.spawn(count)
    gevent.sleep(0)
    yield lambda: number
    counting.kill()


@pytest.fixture
def log(conn: sqlite3.Connection) -> sqlite3.Connection:
    """Return a connection whose commits do not wait for the disk, and are known to be quick."""
    conn.execute("pragma journal_mode=wal")
    conn.execute("pragma synchronous=normal")
    warm(conn, lambda: commit_inserts(conn, 1), INSERT, COMMIT.key)
    return conn


@pytest.fixture
def punctual(monkeypatch: pytest.MonkeyPatch) -> None:
    """No statement is late: a garbage collection may make one, and the thread runs the next one."""
    monkeypatch.setattr(connection.Guard, "is_late", lambda *_: False)


def warm(conn: Any, run: Callable[[], object], *keys: str) -> None:
    """Call *run* until it is known to be quick, on a busy machine too."""
    for _ in range(1000):
        if all(conn._paces.get(key, 0) >= MIN_QUICK_RUNS for key in keys):
            return
        run()
    pytest.fail("never quick")


def commit_inserts(conn: sqlite3.Connection, number: int) -> None:
    for _ in range(number):
        conn.execute(INSERT, (2,))
        conn.commit()


@contextmanager
def handed_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """List the arguments of the calls that a thread makes during a block."""
    called: list[Any] = []
    call = threads.OwnThread.call

    def note(own: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(args)
        return call(own, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(threads.OwnThread, "call", note)
        yield called


def test_an_insert_that_returns_its_row_is_quick_in_a_transaction(
    conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django's do; two rounds of a busy hub each would keep the write lock for long."""
    sql = "insert into row values (?) returning number"
    warm(conn, lambda: conn.execute(sql, (2,)).fetchall(), parse(sql).key)
    with handed_over(monkeypatch) as called:
        assert conn.execute(sql, (3,)).fetchall() == [(3,)]
    assert not called
    conn.rollback()


def test_a_change_that_returns_rows_ends_before_they_are_asked_for(
    conn: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """In autocommit it holds the write lock until its last row is read."""
    returned = other.execute("insert into row values (2) returning number")
    conn.execute("pragma busy_timeout=0")
    conn.execute("insert into row values (3)")
    conn.commit()
    assert returned.fetchall() == [(2,)]
    assert rows(conn) == [1, 2, 3]


@pytest.mark.usefixtures("punctual")
@pytest.mark.parametrize("sql", ["insert into row values (2)", "select * from row"])
def test_a_transaction_that_holds_a_lock_goes_on(
    other: sqlite3.Connection, turns: Callable[[], int], monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """What waits for its end, or fails because of it, would wait for a round of the hub as well."""
    monkeypatch.setattr(connection, "YIELD_EVERY_S", 0.0)
    monkeypatch.setattr(connection, "LOCKED_YIELD_EVERY_S", 30.0)

    def read() -> None:
        other.execute("select * from row where number = 1")

    warm(other, read, parse("select * from row where number = 1").key)
    other.execute("begin")
    other.execute(sql)
    before = turns()
    for _ in range(100):
        read()
    assert turns() == before
    other.execute("rollback")
    read()
    gevent.sleep(0.001)
    assert turns() > before


def test_a_query_that_becomes_slow_does_not_block_the_hub(
    conn: sqlite3.Connection, turns: Callable[[], int]
) -> None:
    """It was quick before and ran in the greenlet: beyond the limit the thread begins it again."""
    warm(conn, lambda: conn.execute(SLOW, (3,)).fetchone(), parse(SLOW).key)
    assert conn.execute(SLOW, (3,)).fetchone() == (3,)
    before = turns()
    assert conn.execute(SLOW, (1_000_000,)).fetchone() == (1_000_000,)
    assert turns() > before + 5
    assert conn._paces[parse(SLOW).key] < MIN_QUICK_RUNS  # type: ignore[attr-defined]


def test_a_first_change_that_becomes_slow_does_not_block_the_hub(
    conn: sqlite3.Connection, turns: Callable[[], int]
) -> None:
    """It has nothing before it that its end would undo."""
    for _ in range(5):
        conn.execute(SLOW_UPDATE, (3,))
        conn.commit()
    before = turns()
    changes = conn.total_changes
    conn.execute(SLOW_UPDATE, (1_000_000,))
    assert conn.in_transaction
    conn.commit()
    assert turns() > before + 5
    assert rows(conn) == [1_000_000]
    assert conn.total_changes == changes + 1


def test_a_mode_that_is_set_is_known_by_the_next_commit(log: sqlite3.Connection) -> None:
    """Also where the pragma was quick, and needed no thread."""
    warm(log, lambda: log.execute("pragma journal_mode=wal"), "pragma journal_mode=wal")
    commit_inserts(log, 1)
    assert log._syncs is False  # type: ignore[attr-defined]
    log.execute("pragma journal_mode=wal")
    assert log._syncs is None  # type: ignore[attr-defined]


def test_a_later_change_that_becomes_slow_undoes_nothing(log: sqlite3.Connection) -> None:
    """The changes before it are kept: it is not ended."""
    log.executescript(
        f"""
        create table slow (number integer);
        create trigger does_it after insert on row when new.number > 10
        begin insert into slow {COUNT.replace("?", "new.number * 10000")}; end;
        """
    )
    for number in (3, 3, 3, 20):
        log.execute(INSERT, (7,))
        log.execute(INSERT, (number,))
        log.commit()
    assert rows(log).count(7) == 4
    assert rows(log)[-1] == 20
    assert log.execute("select number from slow").fetchall() == [(200_000,)]


@pytest.mark.usefixtures("punctual")
def test_a_later_change_of_many_rows_runs_in_the_thread(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a row that is found by its number is always quick."""
    log.execute("create table book (id integer primary key, pages integer)")
    log.execute("insert into book values (1, 1)")
    one, many = (
        "update book set pages = ? where id = 1",
        "update book set pages = 2 where pages > ?",
    )

    def run() -> None:
        for update in (one, many):
            log.execute(INSERT, (2,))
            log.execute(update, (5,))
            log.commit()

    warm(log, run, INSERT, parse(one).key, parse(many).key, COMMIT.key)
    with handed_over(monkeypatch) as called:
        run()
    assert [many in args for args in called] == [True]


@pytest.mark.parametrize("level", ["", "IMMEDIATE", None])
def test_small_transactions_need_no_thread(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, level: str | None
) -> None:
    """A hand-over for each statement would cost more, and hold the lock longer, than they do."""
    log.isolation_level = level
    statements = (INSERT, "select max(number) from row")
    if level is None:
        statements = (INSERT, "begin immediate", *statements)  # the first one commits as well
    written = 0

    def write() -> None:
        nonlocal written
        for sql in statements:
            log.execute(sql, (3,) if sql == INSERT else ())
            written += sql == INSERT
        log.commit()

    warm(log, write, *statements, COMMIT.key)
    with handed_over(monkeypatch) as called:
        for _ in range(20):
            write()
    assert len(called) < 20  # a collection of garbage may make one slow
    assert rows(log).count(3) == written


def test_a_commit_runs_while_other_queries_clear_what_is_known(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many different ones do, in threads, also while it lets other greenlets run."""
    monkeypatch.setattr(connection, "yield_to_hub", log._paces.clear)  # type: ignore[attr-defined]
    log.execute(INSERT, (2,))
    log._yielded_s = 0.0  # type: ignore[attr-defined]
    log.commit()
    assert not log.in_transaction
    assert not log._paces.get(INSERT)  # type: ignore[attr-defined]


def test_sql_sees_the_changes_of_each_update(log: sqlite3.Connection) -> None:
    """Also of the one whose plan is looked at."""
    for _ in range(5):
        log.execute(INSERT, (2,))
        log.execute("update row set number = ? where rowid = 1", (3,))
        assert log.execute("select changes()").fetchone() == (1,)
        log.commit()


def test_a_commit_that_waits_for_the_disk_runs_in_the_thread(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes do not wait, and may run in the greenlet."""
    log.execute("pragma synchronous=full")
    with handed_over(monkeypatch) as called:
        commit_inserts(log, 10)
    assert [args[2] for args in called].count(COMMIT.key) == 10


def test_a_commit_into_other_databases_runs_in_the_thread(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They may have other settings."""
    log.execute("attach ? as other", (str(tmp_path / "other.db"),))
    with handed_over(monkeypatch) as called:
        commit_inserts(log, 3)
    assert [args[2] for args in called].count(COMMIT.key) == 3


class Adapted:
    """A value that sqlite3 asks for another one."""

    def __conform__(self, _: Any) -> bytes:
        return bytes(MAX_SIZE + 1)


@pytest.mark.parametrize(
    "value",
    ["x" * (MAX_SIZE + 1), bytes(MAX_SIZE + 1), Adapted()],
    ids=["str", "bytes", "adapted"],
)
def test_a_change_with_a_large_value_runs_in_the_thread(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    """Nothing ends the copying of a value; the commit copies it again."""
    with handed_over(monkeypatch) as called:
        log.execute(INSERT, (value,))
        log.commit()
    assert len(called) == 2


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("insert into row values (?) returning number", (bytes(MAX_SIZE + 1),)),
        ("create index by_number on row (number)", ()),
    ],
    ids=["returning", "index"],
)
def test_a_commit_of_much_runs_in_the_thread(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, sql: str, values: Any
) -> None:
    """The number of changed rows does not tell that it is much."""
    with handed_over(monkeypatch) as called:
        log.execute("begin")
        log.execute(sql, values).fetchall()
        log.commit()
    assert commit in called[-1]


def test_what_has_blocked_the_hub_runs_in_the_thread_for_long(log: sqlite3.Connection) -> None:
    """A later change cannot be ended, and would block it each time."""

    def work(number: int) -> int:
        started_s = thread_time()
        while number > 10 and thread_time() - started_s < 2 * MAX_BLOCK_S:
            pass
        return number

    log.create_function("work", 1, work, deterministic=True)
    insert = "insert into row values (work(?))"

    def run(number: int) -> None:
        log.execute(INSERT, (2,))
        log.execute(insert, (number,))
        log.commit()

    warm(log, lambda: run(3), insert)
    run(20)
    assert log._paces[insert] < -50  # type: ignore[attr-defined]
    assert rows(log)[-1] == 20


def test_a_commit_of_a_slow_change_runs_in_the_thread(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may write much: FTS5 gathers the words of a text, and writes them at the commit."""

    def work(number: int) -> int:
        started_s = thread_time()
        while thread_time() - started_s < 2 * QUICK_S:
            pass
        return number

    log.create_function("work", 1, work, deterministic=True)
    with handed_over(monkeypatch) as called:
        log.execute("insert into row values (work(?))", (2,))
        log.commit()
        assert commit in called[-1]
        called.clear()
        commit_inserts(log, 10)
    assert len(called) < 10  # a collection of garbage may make one slow


def test_a_commit_that_was_late_runs_in_the_thread_after_the_same_change(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other changes are as quick as before."""
    other = "insert into row values (?) -- the other"
    warm(log, lambda: log.execute(other, (2,)), other)
    log.commit()
    warm(log, lambda: commit_inserts(log, 1), INSERT, COMMIT.key)
    log.execute(INSERT, (2,))
    with monkeypatch.context() as patched:
        patched.setattr(connection.Guard, "is_late", lambda *_: True)
        log.commit()
    with handed_over(monkeypatch) as called:
        for _ in range(10):
            log.execute(other, (2,))
            log.commit()
        assert len(called) < 10  # as above
        log.execute(INSERT, (2,))
        log.commit()
    assert commit in called[-1]


def test_the_thread_does_the_checkpoints(
    log: sqlite3.Connection, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit in the greenlet would wait for the disk; without any the log would grow."""
    log.execute("pragma wal_autocheckpoint=30")
    # A busy machine makes single commits slow.
    for module in (quick, connection):
        monkeypatch.setattr(module, "SLOW_RUNS", 5)
    with handed_over(monkeypatch) as called:
        commit_inserts(log, 1000)
    assert len(called) < 200
    # One in the greenlet does none.
    warm(log, lambda: commit_inserts(log, 1), INSERT, COMMIT.key)
    commit_inserts(log, 1)
    assert _ask(log, "PRAGMA wal_autocheckpoint") == 0
    # At most those of 100 commits, with the pages of the table that have been filled meanwhile.
    assert path.with_name("rows.db-wal").stat().st_size < 300 * 4120
    assert log.execute("pragma wal_autocheckpoint").fetchone() == (30,)
    assert log.execute("pragma wal_checkpoint").fetchone()[1] < 300


def test_commits_of_single_statements_are_counted(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some run in the thread, for the checkpoint, and the next ones in the greenlet again."""
    log.isolation_level = None
    with handed_over(monkeypatch) as called:
        for _ in range(500):
            log.execute(INSERT, (2,))
    assert 4 <= len([args for args in called if args[2] == COMMIT.key]) < 200
    assert len(called) < 200


def test_functions_of_the_application_are_called_in_the_thread_alone(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They might wait. Statements that do not call them run in the greenlet all the same."""
    called_in = []

    def work(number: int) -> int:
        gevent.sleep(0)
        called_in.append(threads.is_offloaded())
        return number + 1

    log.create_function("work", 1, work)
    query, other = "select work(?)", "select number + 1 from row"
    for _ in range(10):
        assert log.execute(query, (2,)).fetchone() == (3,)
    assert called_in == [True] * 10
    with handed_over(monkeypatch) as called:
        warm(log, lambda: log.execute(other).fetchone(), parse(other).key)
        called.clear()
        assert log.execute(other).fetchone()
        commit_inserts(log, 1)
        assert not called
        log.execute(query, (2,))
        assert len(called) == 1


def test_a_query_that_begins_to_call_a_function_is_run_again_in_the_thread(
    log: sqlite3.Connection,
) -> None:
    """It was quick as long as no row was for the function; the rows are those of the second run."""
    called_in = []

    def work(number: int) -> int:
        called_in.append(threads.is_offloaded())
        return -number

    log.create_function("work", 1, work)
    query = "select case when number > 50 then work(number) else number end from row order by 1"
    warm(log, lambda: log.execute(query).fetchall(), parse(query).key)
    before = log.execute(query).fetchall()
    log.execute(INSERT, (60,))
    assert log.execute(query).fetchall() == [(-60,), *before]
    assert set(called_in) == {True}
    assert log._paces[parse(query).key] < 0  # type: ignore[attr-defined]


def test_a_function_can_be_removed(log: sqlite3.Connection) -> None:
    """Statements that call it fail then, as in sqlite3."""
    log.create_function("work", 1, lambda number: number)
    assert log.execute("select work(1)").fetchone() == (1,)
    log.create_function("work", 1, None)
    with pytest.raises(sqlite3.OperationalError, match="user-defined function"):
        log.execute("select work(2)")


def test_what_sets_something_in_the_connection_needs_no_thread(
    conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django does both for each new connection, and for each ``atomic`` block."""
    pragma = "pragma foreign_keys = on"
    warm(conn, lambda: conn.execute(pragma), pragma)
    with handed_over(monkeypatch) as called:
        conn.execute(pragma)
        for level in ("IMMEDIATE", None, ""):
            conn.isolation_level = level
        assert not called
        conn.execute(INSERT, (2,))
        called.clear()
        conn.isolation_level = None  # it commits
        assert len(called) == 1
    assert not conn.in_transaction


def test_a_connection_that_leaves_no_log_is_closed_without_a_thread(
    path: Path, log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a log the last one copies it into the database, also into one that is attached."""
    other = str(tmp_path / "other.db")

    def change(database: Any, attached: Any = None) -> Any:
        conn = sqlite3.connect(database)
        if attached:
            conn.execute("attach ? as attached", (str(attached),))
        conn.execute("create table if not exists row (number)")
        commit_inserts(conn, 1)
        return conn

    for _ in range(MIN_QUICK_RUNS + 1):
        change(other).close()
    for database in (other, str(path)):
        monkeypatch.setitem(quick.paces[database], quick.CLOSE, MIN_QUICK_RUNS)
    with handed_over(monkeypatch) as called:
        for database, attached, is_quick in (
            (other, None, True), (path, None, False), (other, path, False),
        ):  # fmt: skip
            conn = change(database, attached)
            called.clear()
            conn.close()
            assert len(called) == (not is_quick)


def test_an_application_that_limits_its_statements_needs_no_thread_for_quick_ones(
    conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its progress handler is called in the thread, and only there where a query runs."""
    called_in: list[bool] = []

    def handler() -> int:
        called_in.append(threads.is_offloaded())
        return len(called_in) > 5

    key = parse(SLOW).key
    conn.set_progress_handler(handler, 10_000)
    warm(conn, lambda: conn.execute(SLOW, (3,)).fetchone(), key)
    with handed_over(monkeypatch) as called:
        assert conn.execute(SLOW, (300,)).fetchone() == (300,)  # more than one call of the guard
        assert not called
        assert not called_in
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            conn.execute(SLOW, (1_000_000,))
        assert len(called) == 1
    assert called_in == [True] * 6
    assert conn._paces[key] < 0  # type: ignore[attr-defined]
    conn.set_progress_handler(None, 0)
    assert conn.execute(SLOW, (10_000,)).fetchone() == (10_000,)
    assert len(called_in) == 6


def test_a_change_that_cannot_be_ended_calls_the_progress_handler(log: sqlite3.Connection) -> None:
    """It ends the statement, as it does in sqlite3, and none of those that are ours."""
    called_in: list[bool] = []

    def handler() -> int:
        called_in.append(threads.is_offloaded())
        return 1

    log.executescript(
        f"""
        create table slow (number integer);
        create trigger does_it after insert on row when new.number > 10
        begin insert into slow {COUNT.replace("?", "new.number * 10")}; end;
        """
    )
    log.set_progress_handler(handler, 1000)
    warm(log, lambda: commit_inserts(log, 1), INSERT, COMMIT.key)
    log.execute(INSERT, (2,))
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        log.execute(INSERT, (20,))
    assert called_in == [False]
    log.rollback()
    log.set_progress_handler(handler, 1)
    assert _ask(log, "PRAGMA wal_autocheckpoint")
    assert len(called_in) == 1


def test_values_in_the_text_make_no_other_statement(
    log: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydal writes them all there."""
    log.execute("create table book (id integer primary key, title text)")

    numbers = count()

    def statements(number: int) -> list[str]:
        return [
            f"insert into book (title) values ('{number}')",
            f"update book set title = 'x{number}' where id = {number}",
            f"select * from book where id = {number} limit 1",
        ]

    def run() -> None:
        for sql in statements(next(numbers)):
            log.execute(sql).fetchall()
        log.commit()

    warm(log, run, *(parse(sql).key for sql in statements(7)), COMMIT.key)
    with handed_over(monkeypatch) as called:
        for _ in range(20):
            run()
    assert len(called) < 20  # a collection of garbage may make one slow


@pytest.mark.usefixtures("punctual")
def test_the_end_of_a_transaction_that_only_reads_needs_no_thread(
    conn: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing that waits for the disk, unless something was written after all."""

    def end(*statements: str) -> list[Any]:
        conn.execute("begin immediate")
        for sql in statements:
            conn.execute(sql).fetchall()
        with handed_over(monkeypatch) as called:
            conn.commit()
        return called

    query = "select number from row"
    warm(conn, lambda: end(query), quick.END_OF_READS)
    assert not end(query)
    warm(conn, lambda: end("insert into row values (2)"), COMMIT.key)
    assert len(end(query, "insert into row values (2)")) == 1
    assert len(end("pragma user_version = 5", query)) == 1
    assert not end(query)


def test_a_busy_machine_makes_no_connection_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waited for the processor is opened in the greenlet the next time as well."""
    known = {quick.CONNECT: MIN_QUICK_RUNS}
    monkeypatch.setitem(quick.paces, "", known)
    times = iter([0.0, 1.0] * 2)
    monkeypatch.setattr(quick, "monotonic", lambda: next(times))
    own = threads.OwnThread()
    quick.run_or_hand_over(own, "", quick.CONNECT, lambda: None)
    assert known[quick.CONNECT] == MIN_QUICK_RUNS
    quick.run_or_hand_over(own, "", quick.CONNECT, threads.native.sleep, 0.001)
    assert known[quick.CONNECT] < 0
