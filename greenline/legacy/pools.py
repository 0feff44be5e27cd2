"""
Let requests wait for a connection of a pool that raises an error when it has none left.

redis-py's ConnectionPool does, psycopg2's pools and peewee's. There are usually fewer threads than
connections, but not fewer greenlets. So a greenlet waits in a queue until another one returns a
connection, as in redis-py's BlockingConnectionPool and for the same time. The limiter counts this
as a wait for something that other requests hold.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from time import monotonic
from typing import Any

import gevent

from greenline.hub import deadline
from greenline.hub.lock_waits import LockWait
from greenline.legacy import psycopg2_pool
from greenline.legacy.pool_queue import Waiter, waiters_of, wake_first
from greenline.offload import threads
from greenline.offload.imports import after_import

CONNECTION_WAIT_S = 20.0  # the default of BlockingConnectionPool
POOL_CHECK_S = 1.0  # a pool that was reset has connections again, without a release


def install() -> None:
    """Wrap the pools, now or after their imports."""
    after_import("redis.connection", _wrap_redis)
    after_import("psycopg2.pool", _wrap_psycopg2)
    after_import("playhouse.pool", _wrap_peewee)


def _wrap_redis(module: Any) -> None:
    # Older versions lack this error; their pools have no limit unless the application sets one.
    if hasattr(module, "MaxConnectionsError"):
        wrap(module.ConnectionPool, module.MaxConnectionsError, "get_connection", "release")


def _wrap_psycopg2(module: Any) -> None:
    psycopg2_pool.install(module)
    for each in (module.SimpleConnectionPool, module.ThreadedConnectionPool):
        # It raises the same error when it is closed.
        wrap(each, module.PoolError, "getconn", "putconn", lambda pool: not pool.closed)


def _wrap_peewee(module: Any) -> None:
    pool_class, error = module.PooledDatabase, module.MaxConnectionsExceeded
    # With a timeout it waits itself.
    wrap(pool_class, error, "connect", "_close", lambda pool: not pool._wait_timeout)


def wrap(
    pool_class: Any,
    none_left: type[Exception],
    get_name: str,
    give_back_name: str,
    may_wait: Callable[[Any], bool] = lambda _: True,
) -> None:
    """
    Make a pool wait where it would raise an error.

    :param pool_class: the pool's class. A subclass with methods of its own, such as redis-py's
        BlockingConnectionPool, does not change.
    :param none_left: the error that the pool raises when it has no connection left.
    :param get_name: the method that takes a connection, str.
    :param give_back_name: the method that returns one, str.
    :param may_wait: returns whether the error of a pool means that. Default: always.
    """
    get, give_back = getattr(pool_class, get_name), getattr(pool_class, give_back_name)
    if hasattr(get, "_greenline"):
        return

    @wraps(get)
    def get_connection(self: Any, *args: Any, **options: Any) -> Any:
        # Another native thread does not queue, as before the patching.
        if not (gevent.get_hub().main_hub or threads.is_offloaded()):
            return get(self, *args, **options)
        waiters = waiters_of(self)
        if not waiters:  # otherwise it would overtake the waiting greenlets
            try:
                return get(self, *args, **options)
            except none_left:
                if not may_wait(self):
                    raise
        waiter = Waiter()
        waiters.append(waiter)
        try:
            with deadline.spending("pool"), LockWait():
                return get_when_first(waiters, waiter, self, args, options)
        finally:
            # The next one may proceed; if this one failed, its wake-up must not be lost.
            with suppress(ValueError):  # it has left
                waiters.remove(waiter)
            wake_first(self)

    def get_when_first(
        waiters: deque[Waiter], waiter: Waiter, pool: Any, args: Any, options: Any
    ) -> Any:
        until_s = monotonic() + CONNECTION_WAIT_S
        while (left_s := until_s - monotonic()) > 0:
            waiter.clear()
            if waiters[0] is waiter:
                try:
                    return get(pool, *args, **options)
                except none_left:
                    if not may_wait(pool):
                        raise
            # Critical section: no greenlet switch between the failed attempt and this wait. A
            # release during the attempt has set the event, and the wait ends at once.
            deadline.wait_in(waiter.wait, min(left_s, POOL_CHECK_S))
        return get(pool, *args, **options)

    @wraps(give_back)
    def release(self: Any, *args: Any, **options: Any) -> None:
        try:
            give_back(self, *args, **options)
        finally:
            wake_first(self)

    get_connection._greenline = True  # type: ignore[attr-defined]
    setattr(pool_class, get_name, get_connection)
    setattr(pool_class, give_back_name, release)
