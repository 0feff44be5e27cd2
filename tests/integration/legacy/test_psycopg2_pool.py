"""psycopg2's own pool with more requests at once than it was made for."""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import gevent
import psycopg2
import psycopg2.pool
import pytest
from psycopg2.pool import PoolError, ThreadedConnectionPool

from embedded.postgres import Postgres
from greenline.legacy import pools

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
    """And no more than maxconn; the others wait for the first that is returned."""
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


def test_who_waits_has_the_connection_of_another(make_pool: Callable[..., Any]) -> None:
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
    """To the first that waits, at once."""
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
    pool = make_pool(SLOW)
    connecting = gevent.spawn(pool.getconn)
    gevent.sleep(0.1)
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


def test_a_class_may_connect_in_its_own_way(make_pool: Callable[..., Any]) -> None:
    made = []

    class Own(ThreadedConnectionPool):
        def _connect(self, key: Any = None) -> Any:
            made.append(key)
            return super()._connect(key)

    pool = make_pool(pool_class=Own)
    pool.putconn(pool.getconn())
    assert len(made) == 1
