"""
Let requests wait for a connection of redis-py's ConnectionPool, which raises when it has none left.

Its default is 100 connections from redis-py 8 on. Threads are fewer than that; greenlets are not.
So a greenlet waits in turn until another gives one back, as with redis-py's BlockingConnectionPool
and for as long as there. It is a wait for what other requests hold, which the limiter counts.
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

MODULE = "redis.connection"
CONNECTION_WAIT_S = 20.0  # the default of BlockingConnectionPool
POOL_CHECK_S = 1.0  # a pool that was reset has room, and nothing is given back


def install() -> None:
    """Wrap redis-py's ConnectionPool, now or as soon as it is imported."""
    after_import(MODULE, _wrap_its_pool)


def _wrap_its_pool(module: Any) -> None:
    # Without that error it is an old one, whose pools have no limit unless one is asked for.
    if hasattr(module, "MaxConnectionsError"):
        wrap(module.ConnectionPool, module.MaxConnectionsError)


def wrap(pool_class: Any, none_left: type[Exception]) -> None:
    """
    Let *pool_class* wait instead of raising *none_left*.

    BlockingConnectionPool has methods of its own, and stays as it is.
    """
    get, give_back = pool_class.get_connection, pool_class.release
    if hasattr(get, "_greenline"):
        return

    def get_connection(self: Any, *args: Any, **options: Any) -> Any:
        line = self.__dict__.setdefault("_greenline_line", deque())
        if not gevent.get_hub().main_hub:  # a native thread
            return get(self, *args, **options)
        if not line:  # else it would overtake those that wait
            with suppress(none_left):
                return get(self, *args, **options)
        turn = Event()
        line.append(turn)
        try:
            with deadline.spending("queued"), LockWait():
                return in_turn(line, turn, self, args, options)
        finally:
            line.remove(turn)
            if line:
                line[0].set()

    def in_turn(line: deque[Event], turn: Event, pool: Any, args: Any, options: Any) -> Any:
        until_s = monotonic() + CONNECTION_WAIT_S
        while (left_s := until_s - monotonic()) > 0:
            turn.clear()
            if line[0] is turn:
                try:
                    return get(pool, *args, **options)
                except none_left:
                    pass
            # A release after the attempt has set the event: nothing switches in between.
            deadline.wait_in(turn.wait, min(left_s, POOL_CHECK_S))
        return get(pool, *args, **options)

    def release(self: Any, connection: Any) -> None:
        try:
            give_back(self, connection)
        finally:
            line = self.__dict__.get("_greenline_line")
            if line:
                line[0].set()

    get_connection._greenline = True  # type: ignore[attr-defined]
    pool_class.get_connection, pool_class.release = get_connection, release
