"""psycopg2's own pool with more requests at once than it was made for."""

from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic
from typing import Any

import gevent
import psycopg2
import psycopg2.pool
import pytest
from psycopg2.pool import PoolError, ThreadedConnectionPool

from embedded.postgres import Postgres
from greenline.legacy import pools
from tests.helpers.support import wait_until

SIZE = 4
# The server waits for so long before it accepts a connection.
SLOW = "&options=-c%20post_auth_delay%3D1"
SLOW_S = 1.0
SLACK_S = 1.0


@pytest.fixture(autouse=True)
def wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool's classes as the worker has them."""
    for each in (psycopg2.pool.SimpleConnectionPool, ThreadedConnectionPool):
        for name in ("getconn", "putconn", "_putconn"):
            monkeypatch.setattr(each, name, getattr(each, name))
    pools._wrap_psycopg2(psycopg2.pool)


@pytest.fixture
def make_pool(postgres: Postgres) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(more: str = "", pool_class: type = ThreadedConnectionPool) -> Any:
        made.append(pool_class(0, SIZE, postgres.url + more))
        return made[-1]

    yield make
    for pool in made:
        if not pool.closed:
            pool.closeall()


def test_connections_are_made_side_by_side(make_pool: Callable[..., Any]) -> None:
    """No more than maxconn; the other requests wait for the first one that is returned."""
    pool = make_pool(SLOW)

    def use(_: int) -> int:
        conn = pool.getconn()
        assert len(pool._used) <= SIZE
        gevent.sleep(0.01)
        pool.putconn(conn)
        return int(conn.info.backend_pid)

    begun_s = monotonic()
    running = [gevent.spawn(use, number) for number in range(5 * SIZE)]
    gevent.joinall(running, raise_error=True)
    assert monotonic() - begun_s < SLOW_S + SLACK_S
    assert pool._used == pool._rused == {}


def test_a_waiting_request_gets_the_connection_of_another(make_pool: Callable[..., Any]) -> None:
    """It is not closed, although it is more than minconn; the last one is."""
    pool = make_pool()
    served_by = []

    def use() -> None:
        conn = pool.getconn()
        with conn.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            served_by.append(cursor.fetchone()[0])
        pool.putconn(conn)  # in a transaction, which the pool rolls back

    gevent.joinall([gevent.spawn(use) for _ in range(10 * SIZE)], raise_error=True)
    assert len(served_by) == 10 * SIZE
    assert len(set(served_by)) == SIZE
    assert pool.minconn == 0
    assert pool._pool == []


def test_a_connect_that_fails_gives_its_place_back(
    make_pool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one that waits has it at once."""
    pool = make_pool()
    connect, asked = psycopg2.connect, []

    def once_refused(*args: Any, **options: Any) -> Any:
        asked.append(args)
        if len(asked) > 1:
            return connect(*args, **options)
        gevent.sleep(0.1)
        raise psycopg2.OperationalError("no")

    pool.maxconn = 1
    monkeypatch.setattr(psycopg2, "connect", once_refused)
    refused, waiting = gevent.spawn(pool.getconn), gevent.spawn(pool.getconn)
    begun_s = monotonic()
    with pytest.raises(psycopg2.OperationalError, match="no"):
        refused.get()
    pool.putconn(waiting.get())
    assert monotonic() - begun_s < pools.POOL_CHECK_S
    assert pool._used == {}


def test_a_pool_that_is_closed_meanwhile_keeps_no_connection(
    make_pool: Callable[..., Any],
) -> None:
    """The one that is being made is closed, and its request has psycopg2's error."""
    pool = make_pool(SLOW)
    connecting = gevent.spawn(pool.getconn)
    wait_until(lambda: pool._used, "its place to be reserved")
    pool.closeall()
    with pytest.raises(PoolError, match="is closed"):
        connecting.get()
    assert pool._used == {}


def test_a_key_has_one_connection(make_pool: Callable[..., Any]) -> None:
    """For all that name it, as before."""
    pool = make_pool()
    running = [gevent.spawn(pool.getconn, "a key") for _ in range(3)]
    gevent.joinall(running, raise_error=True)
    assert len({id(each.value) for each in running}) == 1


@pytest.mark.parametrize("name", ["_connect", "_getconn"])
def test_a_class_may_connect_in_its_own_way(make_pool: Callable[..., Any], name: str) -> None:
    """A method that it has overridden is called, as before."""
    called = []

    def own(self: Any, key: Any = None) -> Any:
        called.append(key)
        return getattr(ThreadedConnectionPool, name)(self, key)

    pool = make_pool(pool_class=type("Own", (ThreadedConnectionPool,), {name: own}))
    pool.putconn(pool.getconn())
    assert len(called) == 1


def test_waiting_requests_connect_side_by_side(make_pool: Callable[..., Any]) -> None:
    """After the connections of others were closed; one that is returned meanwhile is used."""
    pool = make_pool()
    held = [pool.getconn() for _ in range(SIZE)]
    waiting = [gevent.spawn(pool.getconn) for _ in range(SIZE)]
    wait_until(lambda: len(pool._greenline_line) == SIZE, "them to wait")
    pool._kwargs["options"] = "-c post_auth_delay=1"
    begun_s = monotonic()
    for conn in held[1:]:
        pool.putconn(conn, close=True)
    wait_until(lambda: len(pool._greenline_line) == 1, "all but one to connect")
    pool.putconn(held[0])
    wait_until(lambda: any(each.ready() for each in waiting), "the last one to have it")
    gevent.joinall(waiting, raise_error=True)
    assert monotonic() - begun_s < SLOW_S + SLACK_S
    assert {each.value for each in waiting} >= {held[0]}


def test_a_pool_survives_the_loss_of_its_connections(
    make_pool: Callable[..., Any], postgres: Postgres
) -> None:
    """While requests wait they are rolled back, and fail; putconn() raises nothing, as before."""
    pool = make_pool()

    def use(ends: bool) -> None:
        conn = pool.getconn()
        try:
            with conn.cursor() as cursor:
                cursor.execute("select pg_backend_pid()")
                if ends:
                    with closing(psycopg2.connect(postgres.superuser_url)) as other:
                        pid = cursor.fetchone()
                        other.cursor().execute("select pg_terminate_backend(%s, 5000)", pid)
        finally:
            pool.putconn(conn)

    running = [gevent.spawn(use, number < SIZE) for number in range(3 * SIZE)]
    gevent.joinall(running, raise_error=True)
    assert pool._used == pool._rused == {}
    pool.putconn(pool.getconn())


def test_an_interrupted_return_leaves_no_place_taken(make_pool: Callable[..., Any]) -> None:
    """The greenlet is killed while the pool rolls back."""
    pool = make_pool()
    pool.maxconn = 1
    conn = pool.getconn()
    with conn.cursor() as cursor:
        cursor.execute("select 1")
    waiting = gevent.spawn(pool.getconn)
    wait_until(lambda: len(pool._greenline_line) == 1, "it to wait")
    returning = gevent.spawn(pool.putconn, conn)
    gevent.sleep(0)
    assert pool._lock.locked()  # it waits for the rollback
    returning.kill()
    pool.putconn(waiting.get(timeout=pools.POOL_CHECK_S))
    assert pool._used == {}
