"""Transactions whose BEGIN is sent with a statement: all is done, or nothing, or it is said."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import get_wait_callback, set_wait_callback

from greenline.errors import Conflict, DeadlineExceeded, OutcomeUnknown, StoreError
from greenline.hub import deadline
from greenline.postgres.client import Postgres
from greenline.postgres.connection import Connection
from greenline.postgres.transaction import Transaction
from tests.helpers.pools import Make, Watch, through
from tests.helpers.proxy import Proxy


@contextmanager
def counted() -> Iterator[list[int]]:
    """Yield a list that gets an entry for each message to a server."""
    before, sent = get_wait_callback(), list[int]()

    def wait(conn: Any) -> None:
        sent.append(conn.info.backend_pid)
        before(conn)

    set_wait_callback(wait)
    try:
        yield sent
    finally:
        set_wait_callback(before)


def inserting(table: str) -> Callable[[Transaction], None]:
    """Return the work that inserts a row."""
    return lambda transaction: insert(transaction, table)


def insert(transaction: Transaction, table: str, value: Any = 1) -> None:
    transaction.execute(f"insert into {table} values (%(n)s)", {"n": value})


def test_begin_is_no_message_of_its_own(make: Make, watch: Watch, table: str) -> None:
    """One with the statement, and one to commit; a work that asks for nothing sends nothing."""
    client = Postgres(make(1))
    [(pid,)] = client.fetch("pid", "select pg_backend_pid()", {})
    with counted() as sent:
        client.transact(inserting(table), reset=False)
    assert sent.count(pid) == 2
    with counted() as sent:
        assert client.transact(lambda _: 7, reset=False) == 7
    assert sent.count(pid) == 0
    assert watch.ask(f"select count(*) from {table}") == 1


def test_what_raises_is_rolled_back(make: Make, watch: Watch, table: str) -> None:
    """The connection is used again, and the next statement begins another transaction."""
    pool = make(1)

    def work(transaction: Transaction) -> None:
        insert(transaction, table)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Postgres(pool).transact(work)
    assert watch.ask(f"select count(*) from {table}") == 0
    Postgres(pool).transact(inserting(table))
    assert watch.ask(f"select count(*) from {table}") == 1
    assert pool.get_stats()["connections_num"] == 1


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("wrong", ["select nonsense", "selec 1", "select %(missing)s"])
def test_an_error_that_was_swallowed_is_not_committed(
    make: Make, watch: Watch, table: str, wrong: str, place: str
) -> None:
    """Postgres parses a whole message before it begins, and psycopg2 fills in the values before."""

    def work(transaction: Transaction) -> None:
        if place == "last":
            insert(transaction, table)
        with suppress(psycopg2.Error, KeyError):
            transaction.execute(wrong, {})
        with suppress(psycopg2.Error):
            insert(transaction, table)

    with pytest.raises(StoreError, match="cannot be committed"):
        Postgres(make(1)).transact(work)
    assert watch.ask(f"select count(*) from {table}") == 0


def test_nothing_is_committed_after_the_deadline(make: Make, watch: Watch, table: str) -> None:
    """A handler that overran is rolled back: its client gets 504, and may try again."""

    def work(transaction: Transaction) -> None:
        insert(transaction, table)
        until = time.monotonic() + 0.15
        while time.monotonic() < until:  # without a wait, so that nothing interrupts it
            pass

    with pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        Postgres(make(1)).transact(work)
    assert watch.ask(f"select count(*) from {table}") == 0


def test_what_is_committed_is_not_committed_again(
    make: Make, watch: Watch, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the deadline has passed meanwhile, that would report a failure of what is stored."""

    def refuse(_: Connection) -> None:
        raise DeadlineExceeded

    monkeypatch.setattr(Connection, "commit", refuse)
    Postgres(make(1)).transact(inserting(table))
    assert watch.ask(f"select count(*) from {table}") == 1


def test_it_outlives_the_loss_of_its_connection(
    make: Make, proxy: Proxy, watch: Watch, table: str
) -> None:
    """Cut before its COMMIT it begins again, and happens once."""
    attempts = []

    def work(transaction: Transaction) -> None:
        attempts.append(1)
        insert(transaction, table)
        if len(attempts) == 1:
            proxy.cut()
        transaction.execute("select 1", {})

    Postgres(make(1, url=through(proxy))).transact(work)
    assert len(attempts) == 2
    assert watch.ask(f"select count(*) from {table}") == 1


def test_a_commit_whose_answer_is_lost_is_of_unknown_outcome(
    make: Make, proxy: Proxy, watch: Watch, table: str
) -> None:
    """It did happen here, and a second attempt would do it twice."""
    proxy.lose(b"COMMIT")
    with pytest.raises(OutcomeUnknown):
        Postgres(make(1, url=through(proxy))).transact(inserting(table))
    assert watch.ask(f"select count(*) from {table}") == 1


def test_a_commit_without_an_answer_in_time_is_of_unknown_outcome(
    make: Make, proxy: Proxy, table: str
) -> None:
    """The deadline has interrupted it."""

    def work(transaction: Transaction) -> None:
        insert(transaction, table)
        proxy.mute()

    client = Postgres(make(1, url=through(proxy)))
    client.fetch("one", "select 1", {})  # it connects
    with pytest.raises(OutcomeUnknown), deadline.limit(2.0):
        client.transact(work)


def test_a_commit_that_the_server_refuses_is_known(make: Make, watch: Watch, table: str) -> None:
    """A deferred constraint is checked there; the connection is used again."""
    watch.ask(f"alter table {table} add unique (x) deferrable initially deferred; select 1")
    pool = make(1)
    Postgres(pool).transact(inserting(table))
    with pytest.raises(Conflict):
        Postgres(pool).transact(inserting(table))
    assert watch.ask(f"select count(*) from {table}") == 1
    assert pool.get_stats()["connections_num"] == 1


def test_a_begin_of_the_borrower_is_rolled_back(make: Make, watch: Watch, table: str) -> None:
    """With autocommit psycopg2 knows of no transaction; the connection is used again."""
    pool = make(1)
    with pool.connection(autocommit=True) as conn, conn.cursor() as cursor:
        cursor.execute(f"begin; insert into {table} values (1)")
    with pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute(f"select count(*) from {table}")
        assert cursor.fetchone() == (0,)
    assert pool.get_stats()["connections_num"] == 1
