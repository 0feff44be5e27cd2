"""
Let requests wait for a connection of redis-py's ConnectionPool, which raises when it has none left.

From redis-py 8 on, the default is 100 connections. There are usually fewer threads than that, but
not fewer greenlets. So a greenlet waits in a queue until another one returns a connection, as in
redis-py's BlockingConnectionPool and for the same time. The limiter counts this as a wait for
something that other requests hold.
"""

from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any

import gevent
from gevent.event import Event

from greenline.hub import deadline
from greenline.hub.lock_waits import LockWait
from greenline.offload.imports import after_import

REDIS_MODULE = "redis.connection"
CONNECTION_WAIT_S = 20.0  # the default of BlockingConnectionPool
POOL_CHECK_S = 1.0  # a pool that was reset has connections again, without a release


def install() -> None:
    """Wrap redis-py's ConnectionPool, now or after its import."""
    after_import(REDIS_MODULE, _wrap_its_pool)


def _wrap_its_pool(module: Any) -> None:
    # Older versions lack this error; their pools have no limit unless the application sets one.
    if hasattr(module, "MaxConnectionsError"):
        wrap(module.ConnectionPool, module.MaxConnectionsError)


def wrap(pool_class: Any, none_left: type[Exception]) -> None:
    """
    Make a pool wait where it would raise an error.

    :param pool_class: redis-py's ConnectionPool. BlockingConnectionPool, a subclass with methods
        of its own, does not change.
    :param none_left: the error that the pool raises when it has no connection left.
    """
    get, give_back = pool_class.get_connection, pool_class.release
    if hasattr(get, "_greenline"):
        return

    def get_connection(self: Any, *args: Any, **options: Any) -> Any:
        waiters = self.__dict__.setdefault("_greenline_line", deque())
        # A native thread does not queue: the events belong to the hub of the main thread.
        if not gevent.get_hub().main_hub:
            return get(self, *args, **options)
        if not waiters:  # otherwise it would overtake the waiting greenlets
            with suppress(none_left):
                return get(self, *args, **options)
        waiter = Event()
        waiters.append(waiter)
        try:
            with deadline.spending("pool"), LockWait():
                return get_when_first(waiters, waiter, self, args, options)
        finally:
            # The next one may proceed; if this one failed, its wake-up must not be lost.
            waiters.remove(waiter)
            if waiters:
                waiters[0].set()

    def get_when_first(
        waiters: deque[Event], waiter: Event, pool: Any, args: Any, options: Any
    ) -> Any:
        until_s = monotonic() + CONNECTION_WAIT_S
        while (left_s := until_s - monotonic()) > 0:
            waiter.clear()
            if waiters[0] is waiter:
                try:
                    return get(pool, *args, **options)
                except none_left:
                    pass
            # Critical section: no greenlet switch between the failed attempt and this wait. A
            # release during the attempt has set the event, and the wait ends at once.
            deadline.wait_in(waiter.wait, min(left_s, POOL_CHECK_S))
        return get(pool, *args, **options)

    def release(self: Any, connection: Any) -> None:
        try:
            give_back(self, connection)
        finally:
            waiters = self.__dict__.get("_greenline_line")
            if waiters:
                waiters[0].set()

    get_connection._greenline = True  # type: ignore[attr-defined]
    pool_class.get_connection, pool_class.release = get_connection, release
