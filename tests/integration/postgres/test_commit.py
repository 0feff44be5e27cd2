"""A COMMIT is sent only when it may be, and its outcome is reported as it is."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS
from psycopg2.extensions import cursor as Cursor
from psycopg2.sql import SQL

from embedded.postgres import Postgres
from greenline.errors import ConnectionLost, DeadlineExceeded, OutcomeUnknown, StoreError
from greenline.hub import deadline
from greenline.postgres.connect import connect
from greenline.postgres.connection import BlockCursor, Connection
from greenline.postgres.pool import ConnectionPool
from tests.helpers.pools import Make, Watch, through
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until

Lend = Callable[[ConnectionPool], AbstractContextManager[tuple[Connection, Cursor]]]


@pytest.fixture(params=["BEGIN apart", "BEGIN with the first statement"])
def lend(request: pytest.FixtureRequest) -> Lend:
    """Returns a function that lends a connection and a cursor for a transaction."""

    @contextmanager
    def lent(pool: ConnectionPool) -> Iterator[tuple[Connection, Cursor]]:
        is_block = request.param != "BEGIN apart"
        factory = {"cursor_factory": BlockCursor} if is_block else {}
        with pool.block() if is_block else pool.connection() as conn:
            with conn.cursor(**factory) as cursor:
                yield conn, cursor

    return lent


def test_nothing_is_committed_after_the_deadline(
    make: Make, watch: Watch, table: str, lend: Lend
) -> None:
    """A handler that overran is rolled back: its client gets 504, and may try again."""
    with pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        with lend(make(1)) as (_, cursor):
            cursor.execute(f"insert into {table} values (1)")
            until = time.monotonic() + 0.15
            while time.monotonic() < until:  # without a wait, so that nothing interrupts it
                pass
    assert watch.ask(f"select count(*) from {table}") == 0


def test_a_transaction_whose_error_was_swallowed_is_not_said_to_be_committed(
    make: Make, watch: Watch, table: str, lend: Lend
) -> None:
    """Postgres answers COMMIT with ROLLBACK there, and psycopg2 says nothing."""
    with pytest.raises(StoreError, match="cannot be committed"):
        with lend(make(1)) as (_, cursor):
            cursor.execute(f"insert into {table} values (1)")
            with pytest.raises(psycopg2.Error):
                cursor.execute("select nonsense")
    assert watch.ask(f"select count(*) from {table}") == 0


def test_a_loss_that_was_swallowed_is_known_to_have_written_nothing(
    make: Make, watch: Watch, lend: Lend
) -> None:
    """No COMMIT was sent: the outcome is not unknown."""
    pool = make(1)
    with pytest.raises(ConnectionLost), lend(pool) as (conn, cursor):
        watch.ask("select pg_terminate_backend(%s, 5000)", conn.pid)
        with pytest.raises(psycopg2.Error):
            cursor.execute("select 1")


def test_the_borrowers_own_commit_is_reported_in_the_same_way(make: Make, proxy: Proxy) -> None:
    """conn.commit() in the middle of a block is of unknown outcome when its answer is lost."""
    pool = make(1, url=through(proxy))
    with pytest.raises(OutcomeUnknown), pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute("create temp table t (x int)")
        proxy.lose(b"COMMIT")
        conn.commit()


def test_a_commit_whose_answer_is_lost_may_have_happened(
    make: Make, proxy: Proxy, watch: Watch, table: str, lend: Lend
) -> None:
    """It did, and a second attempt would do it twice."""
    with pytest.raises(OutcomeUnknown), lend(make(1, url=through(proxy))) as (_, cursor):
        cursor.execute(f"insert into {table} values (1)")
        proxy.lose(b"COMMIT")
    assert watch.ask(f"select count(*) from {table}") == 1


def test_the_first_statement_begins_the_transaction(make: Make, watch: Watch, table: str) -> None:
    """In its own message, whatever it is; what fails is rolled back, and the next one begins."""
    pool = make(1)
    insert = f"insert into {table} values (%s)"
    ways: list[Callable[[Cursor], object]] = [
        lambda cursor: cursor.execute(insert, (1,)),
        lambda cursor: cursor.execute(SQL(insert), (1,)),
        lambda cursor: cursor.execute(insert.encode(), (1,)),
        lambda cursor: cursor.executemany(insert, [(1,), (2,)]),
        lambda cursor: cursor.callproc("txid_current"),
        lambda cursor: None,
    ]
    for way in ways:
        with pytest.raises(ZeroDivisionError), pool.block() as conn:
            with conn.cursor(cursor_factory=BlockCursor) as cursor:
                way(cursor)
                in_block = conn.info.transaction_status
                raise ZeroDivisionError
        assert in_block == (
            TRANSACTION_STATUS_IDLE if way is ways[-1] else TRANSACTION_STATUS_INTRANS
        )
        assert watch.ask(f"select count(*) from {table}") == 0
    for way in ways:
        with pool.block() as conn, conn.cursor(cursor_factory=BlockCursor) as cursor:
            way(cursor)
    assert watch.ask(f"select count(*) from {table}") == 5
    assert pool.get_stats()["connections_num"] == 1


def test_a_broken_connection_that_is_not_closed_leaves_no_descriptor(postgres: Postgres) -> None:
    """The descriptor kept for a look at the backend's end goes with the connection."""
    conn = connect(postgres.url, 5.0)
    with pytest.raises(DeadlineExceeded), deadline.limit(0.1), conn.cursor() as cursor:
        cursor.execute("select pg_sleep(60)")
    assert conn.duplicate_fd is not None
    link = Path(f"/proc/self/fd/{conn.duplicate_fd}")
    inode = os.path.realpath(link)
    del conn, cursor
    gc.collect()
    wait_until(lambda: os.path.realpath(link) != inode, "its end")
