"""The greenlets that wait for a connection of a pool, in the order of their arrival."""

from collections import deque
from typing import Any

from greenlet import getcurrent

from greenline.hub.thread_locks import Event


class Waiter(Event):
    """Set when the greenlet that has made it may try again."""

    def __init__(self) -> None:
        super().__init__()
        self.greenlet = getcurrent()


def waiters_of(pool: Any) -> deque[Waiter]:
    """Return those of *pool*."""
    return pool.__dict__.setdefault("_greenline_line", deque())  # type: ignore[no-any-return]


def wake_first(pool: Any) -> None:
    """Let the first one of *pool* try again."""
    if waiters := waiters_of(pool):
        waiters[0].set()


def leave(pool: Any) -> None:
    """Let the next one try, if this greenlet is the first one of *pool*: it needs no turn more."""
    waiters = waiters_of(pool)
    if waiters and waiters[0].greenlet is getcurrent():
        waiters.popleft()
        wake_first(pool)
