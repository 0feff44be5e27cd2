"""
Count the handlers that wait for a lock, or for a place in a pool, which other handlers hold.

The locks, conditions, semaphores and futures of the standard library, and the pools made of them
(SQLAlchemy's, pymongo's), all wait in the patched ``threading.Lock``. Its ``acquire`` is replaced
by one that counts while it waits. An uncontended lock costs less than with gevent's own, which
checks its arguments first. Queues and events are not counted: what they wait for may come from a
client.
"""

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
        self._counts = isinstance(getcurrent(), Handler)
        _waiting += self._counts

    def __exit__(self, *_: object) -> None:
        global _waiting
        _waiting -= self._counts


def install() -> None:
    """Count the waits of the patched ``threading.Lock`` from now on."""
    LockType.acquire = _acquire


def _acquire(self: Any, blocking: bool = True, timeout: float = -1) -> bool:
    """Acquire the lock, as ``threading.Lock.acquire`` does."""
    if not blocking:
        return bool(_gevent_acquire(self, blocking, timeout))
    if _try(self, False):
        return True
    with LockWait():
        return bool(_gevent_acquire(self, blocking, timeout))


_try = BoundedSemaphore.acquire
