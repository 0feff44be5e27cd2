"""One contract for both wait callbacks: ours, and psycogreen's on request."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import gevent
import psycogreen.gevent
import psycopg2
import pytest
from psycopg2.extensions import (
    TRANSACTION_STATUS_ACTIVE,
    get_wait_callback,
    set_wait_callback,
)
from psycopg2.extras import wait_select

from embedded.postgres import Postgres
from greenline import patch
from greenline.errors import ConfigError, DeadlineExceeded, OutcomeUnknown, StoreError
from greenline.hub import deadline
from greenline.postgres.connect import connect
from greenline.postgres.control import Control
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.wait import wait
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until
from tests.helpers.watch import backends


@pytest.fixture(params=["greenline", "psycogreen"])
def hook(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Hook psycopg2 as GREENLINE_PG_WAIT says."""
    monkeypatch.setenv("GREENLINE_PG_WAIT", request.param)
    patch.hook_psycopg2()
    yield request.param
    set_wait_callback(wait)


@pytest.fixture
def pool(hook: str, postgres: Postgres) -> Iterator[ConnectionPool]:
    """A pool of ten."""
    made = ConnectionPool(partial(connect, postgres.url, 5.0), max_size=10)
    yield made
    made.close(2.0)


def test_the_setting_chooses_the_callback(hook: str, postgres: Postgres) -> None:
    """psycogreen's is at work when it is asked for by name, and only then."""
    assert (get_wait_callback() is wait) == (hook == "greenline")
    assert ("psycogreen.gevent" in waiting_in(postgres)) == (hook == "psycogreen")


def test_an_application_that_calls_psycogreen_changes_nothing(hook: str) -> None:
    """Another callback is its own choice."""
    before = get_wait_callback()
    psycogreen.gevent.patch_psycopg()
    assert get_wait_callback() is before
    psycopg2.extensions.set_wait_callback(wait_select)
    assert get_wait_callback() is wait_select


def waiting_in(postgres: Postgres) -> set[str]:
    """Return the modules on the stack of a greenlet that waits for a statement."""

    def work() -> None:
        conn = connect(postgres.url, 5.0)
        with closing(conn), conn.cursor() as cursor:
            begun.append(1)
            cursor.execute("select pg_sleep(60)")

    begun: list[int] = []
    worker = gevent.spawn(work)
    wait_until(lambda: begun, "the statement to begin")
    frame, modules = worker.gr_frame, set()
    while frame is not None:
        modules.add(frame.f_globals["__name__"])
        frame = frame.f_back
    worker.kill()
    return modules


def test_a_killed_statement_keeps_its_slot_until_its_backend_is_gone(
    hook: str, postgres: Postgres
) -> None:
    """Its backend is cancelled; no connection beyond the limit begins before it stops."""
    control = Control(partial(connect, postgres.url, 5.0))
    url = f"{postgres.url}&application_name=killed-{hook}"
    pool = ConnectionPool(partial(connect, url, 5.0), max_size=1, control=control)

    def work() -> None:
        with pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(60)")

    for _ in range(20):
        worker = gevent.spawn(work)
        wait_until(lambda: backends(postgres, f"killed-{hook}", asleep=True), "the statement")
        worker.kill()
        with pool.connection():
            assert backends(postgres, f"killed-{hook}") == 1
    assert pool.close(5.0)
    control.close()


def test_a_commit_that_is_not_answered_in_time_is_of_unknown_outcome(
    hook: str, postgres: Postgres
) -> None:
    """It is never reported as a deadline, which invites to try again."""
    with Proxy(postgres.socket) as proxy:
        url = f"postgresql://greenline@127.0.0.1:{proxy.port}/greenline?sslmode=disable"
        pool = ConnectionPool(partial(connect, url, 5.0), max_size=1)
        # A busy machine connects in that time as well.
        with pytest.raises(OutcomeUnknown), deadline.limit(2):
            with pool.connection() as conn, conn.cursor() as cursor:
                cursor.execute("create temp table t (x int)")
                proxy.mute()
        proxy.pass_on()
        assert pool.close(10.0)


def test_an_unknown_callback_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt name is not silently the default."""
    monkeypatch.setenv("GREENLINE_PG_WAIT", "eventlet")
    with pytest.raises(ConfigError, match=r"^GREENLINE_PG_WAIT: 'eventlet'"):
        patch.hook_psycopg2()


def test_queries_run_side_by_side(pool: ConnectionPool) -> None:
    """Ten sleeping statements take the time of one."""

    def sleep() -> None:
        with pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(1)")

    with gevent.Timeout(5):
        gevent.joinall([gevent.spawn(sleep) for _ in range(10)], raise_error=True)


def test_large_values_go_both_ways(pool: ConnectionPool) -> None:
    """More than a socket's buffer holds, so that writing waits too."""
    text = "x" * 20_000_000
    with pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute("select %s || 'y', length(%s)", (text, text))
        row = cursor.fetchone()
    assert row == (text + "y", len(text))


def test_an_sql_error_keeps_the_connection(pool: ConnectionPool) -> None:
    """The statement failed, the session did not."""
    with pool.connection() as conn:
        first = conn.pid
    with pytest.raises(StoreError), pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute("select nonsense")
    with pool.connection() as conn:
        assert conn.pid == first


def test_a_kill_in_mid_statement_closes_the_connection(pool: ConnectionPool) -> None:
    """The server's next answer belongs to no statement."""
    seen = []

    def work() -> None:
        with pool.connection() as conn, conn.cursor() as cursor:
            seen.append(conn)
            cursor.execute("select pg_sleep(60)")

    victim = gevent.spawn(work)
    wait_until(
        lambda: seen and seen[0].info.transaction_status == TRANSACTION_STATUS_ACTIVE,
        "the statement to run",
    )
    victim.kill(timeout=5)
    assert seen[0].closed
    with pool.connection() as conn:
        assert conn.pid != seen[0].pid


def test_the_deadline_ends_a_statement(pool: ConnectionPool) -> None:
    """By the callback itself, or by the interrupt that follows it."""
    with gevent.Timeout(5), pytest.raises(DeadlineExceeded), deadline.limit(0.2):
        with pool.connection() as conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(60)")


def test_the_next_host_is_tried(hook: str, postgres: Postgres) -> None:
    """The first refuses; libpq goes on with another socket under the same number."""
    with Proxy("/nowhere") as bad, Proxy(postgres.socket) as good, gevent.Timeout(10):
        bad.refuse()
        hosts = f"127.0.0.1:{bad.port},127.0.0.1:{good.port}"
        conn = connect(f"postgresql://greenline@{hosts}/greenline?sslmode=disable", 5.0)
        assert conn.info.port == good.port
        conn.close()


def test_a_connection_of_somebody_else_waits_too(hook: str, postgres: Postgres) -> None:
    """A plain psycopg2 connection, as an ORM makes it, works under the hook."""
    conn = psycopg2.connect(postgres.url)
    with conn.cursor() as cursor:
        cursor.execute("select 7")
        assert cursor.fetchone() == (7,)
    conn.close()
