"""
Count the handlers that wait for a lock, or for a connection of a pool, that other handlers hold.

The locks, conditions and semaphores of the standard library, and the pools made of them
(SQLAlchemy's, pymongo's), all wait in the patched ``threading.Lock``, whose waits are counted.
Events, and queues and conditions outside of a pool or a semaphore, are not: a client may bring what
they wait for.
"""

import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache, wraps
from types import CodeType
from typing import Any

import gevent.monkey
from greenlet import getcurrent

from greenline.hub.handlers import Handler, end_wait
from greenline.hub.thread_locks import Lock

# From the wait for a condition to the pool that waits: wait_for(), and a queue or the like.
POOL_DEPTH = 4

_wait_for_lock = Lock._wait
_waiting = 0


def waiting() -> int:
    """Return how many handlers wait for a lock or a pool now."""
    return _waiting


class LockWait:
    """Count the current greenlet, if it is a handler, as one that waits during the block."""

    __slots__ = ("_counts",)

    def __enter__(self) -> None:
        global _waiting
        me = getcurrent()
        self._counts = isinstance(me, Handler) and not me.awaits_work
        _waiting += self._counts

    def __exit__(self, *_: object) -> None:
        global _waiting
        _waiting -= self._counts


def install() -> None:
    """Count the waits of the patched ``threading.Lock`` from now on. Call once in a process."""
    setattr(Lock, "_wait", _counted_wait)  # noqa: B010
    # These wait in such a lock as well, but for the end of a thread or a future, which no other
    # request holds.
    thread = gevent.monkey.get_original("threading", "Thread")  # gevent's own is built on it
    for owner, name in ((Future, "result"), (Future, "exception"), (thread, "join")):
        setattr(owner, name, _not_counted(getattr(owner, name)))
    condition = gevent.monkey.get_original("threading", "Condition")
    condition.wait = _not_counted(condition.wait, unless=_is_of_pool)


def _not_counted(
    wait: Callable[..., Any], unless: Callable[[], bool] = lambda: False
) -> Callable[..., Any]:
    @wraps(wait)
    def not_counted(*args: Any, **kwargs: Any) -> Any:
        me = getcurrent()
        if not isinstance(me, Handler) or me.awaits_work or unless():
            return wait(*args, **kwargs)
        me.awaits_work = True
        try:
            return wait(*args, **kwargs)
        finally:
            me.awaits_work = False

    return not_counted


def _is_of_pool() -> bool:
    """Return whether the code that waits for a condition is that of a pool or a semaphore."""
    frame = sys._getframe(2)  # behind this function and the wrapper
    for _ in range(POOL_DEPTH):
        if _names_a_pool(frame.f_code, frame.f_globals.get("__name__", "")):
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


@lru_cache(1_000)
def _names_a_pool(code: CodeType, module: str) -> bool:
    name = f"{module}.{code.co_qualname}".lower()
    return "pool" in name or name.startswith("threading.semaphore.")


def _counted_wait(self: Lock, timeout: float) -> bool:
    with LockWait():
        is_acquired: bool = _wait_for_lock(self, timeout)
    end_wait()
    return is_acquired
