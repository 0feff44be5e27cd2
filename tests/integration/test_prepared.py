"""Named statements: prepared once a connection, and again when the schema changed."""

from collections.abc import Iterator
from functools import partial

import pytest

from embedded.postgres import Postgres as Server
from greenline.errors import StoreError
from greenline.postgres.client import Postgres
from greenline.postgres.connect import connect
from greenline.postgres.pool import ConnectionPool


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
    """A raw borrower in between costs no plan."""
    client = Postgres(pool)
    client.fetch("one", "select 1", {})
    change(pool, "set search_path to nowhere")
    client.fetch("one", "select 1", {})
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


def test_a_statement_that_is_wrong_stays_wrong(pool: ConnectionPool) -> None:
    """Preparing again helps nothing there, and its name is not taken."""
    client = Postgres(pool)
    for _ in range(2):
        with pytest.raises(StoreError):
            client.fetch("wrong", "select * from nowhere", {})
    assert statements(pool) == []
