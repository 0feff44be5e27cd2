"""greenline.postgres.clean: what psycopg2 keeps of one borrower never reaches the next."""

from collections.abc import Callable
from copy import copy
from datetime import date
from typing import Any

import pytest
from gevent.socket import wait_read
from psycopg2.extensions import ISOLATION_LEVEL_SERIALIZABLE, new_type, register_type
from psycopg2.extras import RealDictCursor

from embedded.postgres import Postgres as Server
from greenline.errors import StoreError
from greenline.postgres.client import Postgres
from greenline.postgres.connection import Connection
from greenline.postgres.pool import ConnectionPool
from tests.helpers.pools import Make, Watch, run

INT4 = 23


def set_session(conn: Connection) -> None:
    conn.set_session(ISOLATION_LEVEL_SERIALIZABLE, readonly=True, deferrable=True)


def set_readonly(conn: Connection) -> None:
    conn.readonly = True


def set_isolation_level(conn: Connection) -> None:
    conn.isolation_level = ISOLATION_LEVEL_SERIALIZABLE


def set_deferrable(conn: Connection) -> None:
    conn.deferrable = True


def set_cursor_factory(conn: Connection) -> None:
    conn.cursor_factory = RealDictCursor


def register_types(conn: Connection) -> None:
    register_type(new_type((INT4,), "SECRET", lambda value, _: "secret"), conn)
    conn.binary_types[INT4] = conn.string_types[INT4]


def leave_a_notification(conn: Connection) -> None:
    with conn.cursor() as cursor:
        cursor.execute("listen news; notify news, 'secret'")
        conn.commit()
    assert [notify.payload for notify in conn.notifies] == ["secret"]


def leave_a_notice(conn: Connection) -> None:
    with conn.cursor() as cursor:
        cursor.execute("do $$ begin raise notice 'secret'; end $$")
    assert "secret" in conn.notices[0]


def client_side(conn: Connection) -> dict[str, Any]:
    """Return what psycopg2 knows of the session and no statement shows."""
    names = (
        "autocommit", "binary_types", "cursor_factory", "deferrable", "encoding", "isolation_level",
        "notices", "notifies", "readonly", "string_types",
    )  # fmt: skip
    return {name: copy(getattr(conn, name)) for name in names}


def seen_by_a_borrower(pool: ConnectionPool) -> tuple[int, Any, Any]:
    """Return the backend, what psycopg2 keeps, and what it makes of a row."""
    with pool.connection() as conn:
        kept = client_side(conn)
        with conn.cursor() as cursor:
            cursor.execute(
                "select 1, current_setting('transaction_isolation'), "
                "current_setting('transaction_read_only'), "
                "current_setting('transaction_deferrable')"
            )
            return conn.pid, kept, cursor.fetchone()


@pytest.mark.parametrize("autocommit", [False, True], ids=["transaction", "autocommit"])
@pytest.mark.parametrize(
    "leave",
    [
        set_session, set_readonly, set_isolation_level, set_deferrable, set_cursor_factory,
        register_types, leave_a_notification, leave_a_notice,
    ],
)  # fmt: skip
def test_what_one_borrower_tells_psycopg2_never_reaches_the_next(
    make: Make, leave: Callable[[Connection], None], autocommit: bool
) -> None:
    """The connection is the same one, and cannot be distinguished from a new one."""
    pool = make(1)
    before = seen_by_a_borrower(pool)
    with pool.connection(autocommit=autocommit) as conn:
        leave(conn)
    assert seen_by_a_borrower(pool) == before


def test_a_notification_that_comes_late_is_dropped(make: Make, watch: Watch) -> None:
    """It lies in the socket when its borrower leaves, and comes with the answer to the reset."""
    pool = make(1)
    with pool.connection(autocommit=True) as conn, conn.cursor() as cursor:
        first = conn.pid
        cursor.execute("listen news")
        watch.ask("select pg_notify('news', 'secret')")
        wait_read(conn.fileno(), 10)
    with pool.connection() as conn:
        assert (conn.pid, conn.notifies) == (first, [])


def test_a_connection_in_another_encoding_is_not_kept(make: Make) -> None:
    """RESET ALL would leave psycopg2 with the one and the server with the other."""
    pool = make(1)
    with pool.connection() as conn:
        first = conn.pid
        conn.set_client_encoding("LATIN1")
    assert run(pool, "select 'é'") == "é"
    assert run(pool, "select pg_backend_pid()") != first


@pytest.mark.parametrize("encoding", ["latin1", "sql_ascii", "iso_8859_5"])
def test_an_encoding_of_the_url_is_kept(make: Make, postgres: Server, encoding: str) -> None:
    """It was not set, though psycopg2 and the server spell it differently."""
    pool = make(1, f"{postgres.url}&client_encoding={encoding}")
    with pool.connection() as conn:
        first = conn.pid
    assert run(pool, "select pg_backend_pid()") == first


def test_dates_are_read_after_the_reset_whatever_the_database_writes(
    make: Make, postgres: Server
) -> None:
    """psycopg2 asks for ISO dates when it connects, and RESET ALL takes that back."""
    pool = make(1, f"{postgres.url}&options=-c%20datestyle%3DGerman")
    for _ in range(3):
        with pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute("select date '2020-12-31', current_setting('datestyle')")
            assert cursor.fetchone() == (date(2020, 12, 31), "ISO, DMY")


def test_a_borrowers_cursor_has_no_part_in_the_reset(make: Make) -> None:
    """One that fails or takes its time would fail or hold up the return."""
    pool = make(1)
    made = []

    class Counted(RealDictCursor):
        def __init__(self, *args: Any, **options: Any) -> None:
            made.append(1)
            super().__init__(*args, **options)

    with pool.connection() as conn:
        conn.cursor_factory = Counted
    assert Postgres(pool).fetch("one", "select 1", {}) == [(1,)]
    assert not made


@pytest.mark.parametrize("statement", ["copy (select 1) to stdout", "copy mine from stdin"])
def test_copy_by_execute_says_what_to_do_instead(make: Make, statement: str) -> None:
    """psycopg2's own advice, copy_to(), does not exist in green mode either."""
    pool = make(1)
    with pool.connection(autocommit=True) as conn:
        first = conn.pid
    with (
        pytest.raises(StoreError, match="execute_values"),
        pool.connection() as conn,
        conn.cursor() as cursor,
    ):
        cursor.execute("create temp table mine (x int)")
        cursor.execute(statement)
    assert run(pool, "select pg_backend_pid()") != first


def test_an_error_of_the_server_is_no_advice_about_copy(make: Make) -> None:
    """Its text may hold anything."""
    pool = make(1)
    with pytest.raises(StoreError) as caught:
        run(pool, "select 'can''t execute COPY'::int")
    assert "execute_values" not in str(caught.value)
