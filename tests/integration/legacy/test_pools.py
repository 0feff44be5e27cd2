"""Requests that wait for pools which would raise an error."""

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from redis.connection import Connection, ConnectionPool
from redis.exceptions import MaxConnectionsError

from greenline.legacy import pools
from greenline.legacy.pool_queue import waiters_of
from greenline.offload import threads
from tests.helpers.support import run, wait_until


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

    for _ in range(2):  # the second time does nothing
        pools.wrap(Pool, MaxConnectionsError, "get_connection", "release")
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
    monkeypatch.setattr(pools, "CONNECTION_WAIT_S", 0.05)
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


def test_a_request_in_a_native_thread_waits(make_pool: Callable[[int], Any]) -> None:
    """As in its greenlet, behind those that wait already."""
    pool, got = make_pool(1), []
    connection = pool.get_connection()

    def use() -> None:
        got.append(pool.get_connection())
        pool.release(got[-1])

    waiting = [gevent.spawn(use), *[gevent.spawn(threads.run, use) for _ in range(3)]]
    wait_until(lambda: len(waiters_of(pool)) == 4, "all of them to wait")
    pool.release(connection)
    gevent.joinall(waiting, timeout=9, raise_error=True)
    assert got == 4 * [connection]


SCRIPT = """
from greenline.patch import patch_all; patch_all()
import sys, time
import gevent
import psycopg2.pool
from playhouse.pool import MaxConnectionsExceeded, PooledPostgresqlDatabase

def at_once(use):
    running = gevent.joinall([gevent.spawn(use) for _ in range(30)], timeout=60)
    return {each.value or repr(each.exception) for each in running}

for kind in (psycopg2.pool.ThreadedConnectionPool, psycopg2.pool.SimpleConnectionPool):
    pool = kind(1, 4, sys.argv[1])
    def use():
        conn = pool.getconn()
        try:
            with conn.cursor() as cursor:
                cursor.execute("select pg_sleep(0.05)")
            # The simple one has no lock, and more connections than it may have, as under threads.
            return "done", len(pool._used) <= 4 or kind is psycopg2.pool.SimpleConnectionPool
        finally:
            pool.putconn(conn)
    print(at_once(use), len(pool._used))
    pool.closeall()
    begun_s = time.monotonic()
    try:
        pool.getconn()
    except psycopg2.pool.PoolError as error:
        print(error, time.monotonic() - begun_s < 1)

for more in ({}, {"timeout": 0.1}):
    database = PooledPostgresqlDatabase(sys.argv[1], max_connections=4, **more)
    def use():
        try:
            with database.connection_context():
                database.execute_sql("select pg_sleep(0.05)").fetchall()
                return "done"
        except MaxConnectionsExceeded:
            return "none left"
    print(sorted(at_once(use)), len(database._in_use))
"""
SAID = """\
{('done', True)} 0
connection pool is closed True
{('done', True)} 0
connection pool is closed True
['done'] 0
['done', 'none left'] 0
"""


def test_unmodified_pools_raise_no_error(empty_database: str) -> None:
    """With thirty requests for four connections; closed, or with a timeout, they do."""
    done = run(["python", "-c", SCRIPT, empty_database], {})
    assert done.stdout == SAID, done.stderr
