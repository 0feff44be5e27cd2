"""A COMMIT is sent only when it may be, and its outcome is reported as it is."""

import gc
import os
import time
from pathlib import Path

import psycopg2
import pytest

from embedded.postgres import Postgres
from greenline.errors import ConnectionLost, DeadlineExceeded, OutcomeUnknown, StoreError
from greenline.hub import deadline
from greenline.postgres.connect import connect
from tests.helpers.pools import Make, Watch, through
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until


def test_nothing_is_committed_after_the_deadline(make: Make, watch: Watch, table: str) -> None:
    """A handler that overran is rolled back: its client gets 504, and may try again."""
    with pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        with make(1).connection() as conn, conn.cursor() as cursor:
            cursor.execute(f"insert into {table} values (1)")
            until = time.monotonic() + 0.15
            while time.monotonic() < until:  # without a wait, so that nothing interrupts it
                pass
    assert watch.ask(f"select count(*) from {table}") == 0


def test_a_transaction_whose_error_was_swallowed_is_not_said_to_be_committed(
    make: Make, watch: Watch, table: str
) -> None:
    """Postgres answers COMMIT with ROLLBACK there, and psycopg2 says nothing."""
    with pytest.raises(StoreError, match="cannot be committed"):
        with make(1).connection() as conn, conn.cursor() as cursor:
            cursor.execute(f"insert into {table} values (1)")
            with pytest.raises(psycopg2.Error):
                cursor.execute("select nonsense")
    assert watch.ask(f"select count(*) from {table}") == 0


def test_a_loss_that_was_swallowed_is_known_to_have_written_nothing(
    make: Make, watch: Watch
) -> None:
    """No COMMIT was sent: the outcome is not unknown."""
    pool = make(1)
    with pytest.raises(ConnectionLost), pool.connection() as conn, conn.cursor() as cursor:
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
