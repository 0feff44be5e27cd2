"""Named statements: prepared once a connection, and again when the schema changed."""

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any, cast

import pytest
from psycopg2.errors import DuplicatePreparedStatement

from embedded.postgres import Postgres as Server
from greenline.errors import SerializationFailure, StoreError
from greenline.postgres import prepared
from greenline.postgres.client import Postgres
from greenline.postgres.connect import connect
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.transaction import Transaction

BODY = "$$ begin raise feature_not_supported using message = 'not here'; end $$"


@pytest.fixture
def pool(postgres: Server) -> Iterator[ConnectionPool]:
    """A pool of one connection, so that what is prepared can be asked for."""
    made = ConnectionPool(partial(connect, postgres.url, 5.0), max_size=1)
    yield made
    made.close(2.0)


def statements(pool: ConnectionPool) -> list[str]:
    with pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
        cursor.execute("select name from pg_prepared_statements order by prepare_time")
        return [row[0] for row in cursor]


def prepared_at(pool: ConnectionPool, name: str) -> datetime:
    with pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
        cursor.execute("select prepare_time from pg_prepared_statements where name = %s", (name,))
        row = cursor.fetchone()
        assert row is not None
        return cast(datetime, row[0])


def run(
    client: Postgres, named: list[tuple[str, str]], values: dict[str, object]
) -> list[tuple[Any, ...]]:
    """Run these statements in a transaction, in one message."""
    return client.transact(lambda transaction: transaction.run(named, values))


def change(pool: ConnectionPool, statement: str) -> None:
    with pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute(statement)


def test_a_statement_is_prepared_once_a_connection(pool: ConnectionPool) -> None:
    """Its plan is counted once however often it runs, and values go by name."""
    client = Postgres(pool)
    for n in range(5):
        rows = client.fetch("sums", "select %(a)s::int + %(b)s::int, %(a)s::int", {"a": n, "b": 10})
        assert rows == [(n + 10, n)]
    assert statements(pool) == ["sums"]


def test_prepared_statements_survive_the_reset(pool: ConnectionPool) -> None:
    """A raw borrower in between costs no plan: it is the same statement, not one like it."""
    client = Postgres(pool)
    client.fetch("one", "select 1", {})
    before = prepared_at(pool, "one")
    change(pool, "set search_path to nowhere")
    client.fetch("one", "select 1", {})
    assert prepared_at(pool, "one") == before
    assert statements(pool) == ["one"]


def test_nothing_is_prepared_when_it_is_off(pool: ConnectionPool) -> None:
    """pgbouncer in transaction mode knows no prepared statements of ours."""
    client = Postgres(pool, prepare=False)
    assert client.fetch("one", "select %(n)s::int, '%%'", {"n": 1}) == [(1, "%")]
    assert statements(pool) == []


def test_a_per_cent_sign_means_the_same_prepared_or_not(pool: ConnectionPool) -> None:
    """%% is one sign, as everywhere in psycopg2."""
    text = "select 'a' like '%%', %(n)s::int"
    both = [Postgres(pool, prepare=on).fetch("signs", text, {"n": 1}) for on in (True, False)]
    assert both == [[(True, 1)], [(True, 1)]]


def test_a_changed_table_is_planned_anew(pool: ConnectionPool) -> None:
    """A migration under a running service costs no request."""
    client = Postgres(pool)
    change(pool, "drop table if exists changing; create table changing (a int)")
    change(pool, "insert into changing values (1)")
    assert client.fetch("whole", "select * from changing", {}) == [(1,)]
    change(pool, "alter table changing add b int default 2")
    assert client.fetch("whole", "select * from changing", {}) == [(1, 2)]
    change(pool, "drop table changing")


def test_a_statement_that_somebody_deallocated_is_prepared_again(pool: ConnectionPool) -> None:
    """Legacy code may discard what it did not make."""
    client = Postgres(pool)
    client.fetch("one", "select 1", {})
    change(pool, "deallocate all")
    assert client.fetch("one", "select 1", {}) == [(1,)]


def test_the_same_name_with_another_text_runs_that_text(pool: ConnectionPool) -> None:
    """The latest text has the name, and keeps it."""
    client = Postgres(pool)
    texts = {"select 1": 1, "select %(n)s::int": 2, "select 3": 3}
    for _ in range(2):
        for text, number in texts.items():
            assert client.fetch("mine", text, {"n": 2}) == [(number,)]
    before = prepared_at(pool, "mine")
    assert client.fetch("mine", "select 3", {}) == [(3,)]
    assert prepared_at(pool, "mine") == before


def test_another_text_takes_over_a_name_that_somebody_deallocated(pool: ConnectionPool) -> None:
    """There is nothing to deallocate, and that breaks nothing."""
    client = Postgres(pool)
    client.fetch("mine", "select 1", {})
    change(pool, "deallocate all")
    assert client.fetch("mine", "select 2", {}) == [(2,)]


def test_a_name_that_a_borrower_took_is_taken_back(pool: ConnectionPool) -> None:
    """A borrower's own PREPARE outlives the reset, and must not stand in for ours."""
    client = Postgres(pool)
    change(pool, "prepare mine as select 'theirs'")
    for _ in range(2):
        assert client.fetch("mine", "select 'ours'", {}) == [("ours",)]
    assert statements(pool) == ["mine"]


def test_a_taken_name_breaks_one_transaction(pool: ConnectionPool) -> None:
    """The failure has broken it, and the next one takes the name back."""
    change(pool, "prepare mine as select 'theirs'")
    ours = [("mine", "select 'ours'")]
    with (
        pytest.raises(SerializationFailure) as caught,
        pool.connection() as conn,
        conn.cursor() as cursor,
    ):
        prepared.execute(cursor, ours, {})
    assert isinstance(caught.value.__cause__, DuplicatePreparedStatement)
    with pool.connection() as conn, conn.cursor() as cursor:
        prepared.execute(cursor, ours, {})
        assert cursor.fetchone() == ("ours",)


def test_another_text_takes_over_in_a_transaction(pool: ConnectionPool) -> None:
    """Nothing fails there, so nothing is broken."""
    with pool.connection() as conn, conn.cursor() as cursor:
        for number in (1, 2, 1):
            prepared.execute(cursor, [("mine", f"select {number}")], {})
            assert cursor.fetchone() == (number,)


def test_a_statement_that_is_wrong_stays_wrong(pool: ConnectionPool) -> None:
    """Preparing again helps nothing there, and its name is not taken."""
    client = Postgres(pool)
    for _ in range(2):
        with pytest.raises(StoreError):
            client.fetch("wrong", "select * from nowhere", {})
    assert statements(pool) == []


def test_a_prepared_statement_is_planned_once(pool: ConnectionPool) -> None:
    """A LIMIT would have Postgres plan it anew at each EXECUTE."""
    client = Postgres(pool)
    text = "select n from generate_series(1, 1000) n order by n limit %(limit)s::int"
    for limit in (1, 2, 3, 4, 5, 6, 7):
        assert len(client.fetch("limited", text, {"limit": limit})) == limit
    with pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute(
            "select generic_plans, custom_plans from pg_prepared_statements where name = 'limited'"
        )
        assert cursor.fetchone() == (7, 0)


def test_no_more_are_kept_than_may_be(pool: ConnectionPool) -> None:
    """The one that was used least recently goes for a new one, and comes again when it is asked."""
    client = Postgres(pool)
    for number in range(prepared.MOST):
        client.fetch(f"kept_{number}", f"select {number}", {})
    client.fetch("kept_0", "select 0", {})
    assert client.fetch("new", "select 'new'", {}) == [("new",)]
    names = statements(pool)
    assert len(names) == prepared.MOST
    assert {"kept_0", "kept_2", "new"} <= set(names)
    assert "kept_1" not in names
    assert client.fetch("kept_1", "select 1", {}) == [(1,)]
    assert len(statements(pool)) == prepared.MOST


def test_what_should_go_may_be_gone(pool: ConnectionPool) -> None:
    """Somebody deallocated it before: nothing fails, in a transaction neither."""
    client = Postgres(pool)
    for number in range(prepared.MOST):
        client.fetch(f"kept_{number}", f"select {number}", {})
    change(pool, "deallocate kept_0; deallocate kept_1")
    assert client.fetch("new", "select 'new'", {}) == [("new",)]
    with pool.connection() as conn, conn.cursor() as cursor:
        prepared.execute(cursor, [("newer", "select 'newer'")], {})
        assert cursor.fetchone() == ("newer",)
    assert len(statements(pool)) == prepared.MOST


def test_statements_of_one_message_share_their_values(pool: ConnectionPool) -> None:
    """The rows are the last one's, and what they write is there for the next."""
    for client in (Postgres(pool), Postgres(pool, prepare=False)):
        change(pool, "drop table if exists written; create table written (a int)")
        insert = ("adding", "insert into written select a from generate_series(1, %(n)s::int) a")
        count = ("counting", "select count(*), %(n)s::int from written where 'a' like '%%'")
        for times in (1, 2):
            assert run(client, [insert, count], {"n": 3}) == [(3 * times, 3)]
    assert statements(pool) == ["adding", "counting"]
    change(pool, "drop table written")


def test_a_changed_table_is_written_by_a_further_attempt(pool: ConnectionPool) -> None:
    """The first one is broken by the stale statement, and nothing of it stays."""
    client = Postgres(pool)
    change(pool, "drop table if exists changing; create table changing (a int)")
    insert = ("adding", "insert into changing values (%(a)s)")
    named = [insert, ("whole", "select * from changing")]
    assert run(client, named, {"a": 1}) == [(1,)]
    change(pool, "alter table changing add b int default 2")
    assert run(client, named, {"a": 3}) == [(1, 2), (3, 2)]
    change(pool, "deallocate adding; deallocate whole")
    assert run(client, named, {"a": 4}) == [(1, 2), (3, 2), (4, 2)]
    change(pool, "drop table changing")


def test_what_the_server_cannot_do_is_tried_once(pool: ConnectionPool) -> None:
    """Its error is the one of a stale statement, but this statement is new."""
    client, attempts = Postgres(pool), []
    change(pool, f"create or replace function refuse() returns int language plpgsql as {BODY}")

    def work(transaction: Transaction) -> object:
        attempts.append(1)
        return transaction.run([("refused", "select refuse()")], {})

    with pytest.raises(StoreError) as caught:
        client.transact(work)
    assert "not here" in str(caught.value.__cause__)
    assert len(attempts) == 1
    change(pool, "drop function refuse()")
