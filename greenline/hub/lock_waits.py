"""
Count the handlers that wait for a lock, or for a place in a pool, which other handlers hold.

The locks, conditions and semaphores of the standard library, and the pools made of them
(SQLAlchemy's, pymongo's), all wait in the patched ``threading.Lock``. Its ``acquire`` is replaced
by one that counts while it waits. An uncontended lock costs less than with gevent's own, which
checks its arguments first. Queues and events are not counted: what they wait for may come from a
client.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import Any

from gevent.lock import BoundedSemaphore
from gevent.thread import LockType  # type: ignore[import-not-found]
from greenlet import getcurrent

from greenline.hub.handlers import Handler

_gevent_acquire = LockType.acquire
_waiting = 0


def waiting() -> int:
    """Return how many handlers wait for a lock or a place in a pool now."""
    return _waiting


class LockWait:
    """A block in which the current greenlet waits for a place that others hold."""

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
    """Count the waits of the patched ``threading.Lock`` from now on; once in a process."""
    LockType.acquire = _acquire
    # They wait in such a lock as well, but the end of a thread or a future is its own work's, and
    # no other request holds it.
    for owner, name in ((Future, "result"), (Future, "exception"), (threading.Thread, "join")):
        setattr(owner, name, _not_counted(getattr(owner, name)))


def _not_counted(wait: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(wait)
    def not_counted(*args: Any, **kwargs: Any) -> Any:
        me = getcurrent()
        if not isinstance(me, Handler) or me.awaits_work:
            return wait(*args, **kwargs)
        me.awaits_work = True
        try:
            return wait(*args, **kwargs)
        finally:
            me.awaits_work = False

    return not_counted


def _acquire(self: Any, blocking: bool = True, timeout: float = -1) -> bool:
    """Acquire the lock, as ``threading.Lock.acquire`` does."""
    if not blocking:
        return bool(_gevent_acquire(self, blocking, timeout))
    if _try(self, False):
        return True
    with LockWait():
        return bool(_gevent_acquire(self, blocking, timeout))


_try = BoundedSemaphore.acquire
