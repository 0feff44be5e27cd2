"""Requests that wait for redis-py's pool."""

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from redis.connection import Connection, ConnectionPool
from redis.exceptions import MaxConnectionsError

from greenline.legacy import redis_py


class Unconnected(Connection):
    """A connection to nothing: only the pool is looked at."""

    def connect(self) -> None: ...

    def can_read(self, timeout: float = 0) -> bool:
        return False


@pytest.fixture
def make_pool() -> Callable[[int], Any]:
    """Return what makes a pool that waits; redis-py's own class stays as it is."""

    class Pool(ConnectionPool):
        pass

    redis_py.wrap(Pool, MaxConnectionsError)
    redis_py.wrap(Pool, MaxConnectionsError)  # which does nothing
    return lambda size: Pool(connection_class=Unconnected, max_connections=size)


def test_a_connection_is_waited_for_in_the_order_of_arrival(
    make_pool: Callable[[int], Any],
) -> None:
    """One connection, ten greenlets: each has its turn, and none overtakes."""
    pool, turns = make_pool(1), []

    def use(number: int) -> None:
        connection = pool.get_connection()
        turns.append(number)
        gevent.sleep(0.001)
        pool.release(connection)
        if number < 10:
            use(number + 10)  # at once again: behind those that wait

    gevent.joinall(
        [gevent.spawn(use, number) for number in range(10)], raise_error=True, timeout=40
    )
    assert turns == list(range(20))
    assert not pool._greenline_line


def test_it_is_not_waited_for_longer_than_in_a_blocking_pool(
    make_pool: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is redis-py's own, and what comes later is given."""
    monkeypatch.setattr(redis_py, "CONNECTION_WAIT_S", 0.05)
    pool = make_pool(1)
    connection = pool.get_connection()
    with pytest.raises(MaxConnectionsError):
        pool.get_connection()
    pool.release(connection)
    assert pool.get_connection() is connection


def test_a_waiter_that_is_killed_leaves_its_place(make_pool: Callable[[int], Any]) -> None:
    """The next one has the connection."""
    pool = make_pool(1)
    connection = pool.get_connection()
    first, second = (gevent.spawn(pool.get_connection) for _ in range(2))
    gevent.sleep(0)
    first.kill()
    pool.release(connection)
    assert second.get(timeout=40) is connection


def test_a_native_thread_does_not_wait(make_pool: Callable[[int], Any]) -> None:
    """There it is as redis-py has it, also while greenlets wait."""
    pool = make_pool(1)
    connection = pool.get_connection()
    waiting = gevent.spawn(pool.get_connection)
    gevent.sleep(0)
    with pytest.raises(MaxConnectionsError):
        gevent.get_hub().threadpool.apply(pool.get_connection)
    pool.release(connection)
    assert waiting.get(timeout=9) is connection
