"""
One deadline a request; what remains of it is passed down.

1. The deadline is one absolute monotonic time in a context variable.
2. Whoever waits asks ``remaining()`` and gives up by itself.
3. What did not give up is interrupted ``GRACE_S`` later, wherever it waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic

import gevent

from greenline.errors import DeadlineExceeded

GRACE_S = 0.25

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def limit(timeout_s: float) -> Iterator[None]:
    """
    Bound the block to *timeout_s* seconds; inside another limit, to the nearer of both.

    Raises:
        DeadlineExceeded: the block was interrupted.
    """
    until = monotonic() + timeout_s
    outer = _deadline.get()
    if outer is not None:
        until = min(until, outer)
    token = _deadline.set(until)
    error = DeadlineExceeded()
    timer = gevent.Timeout.start_new(max(until - monotonic(), 0) + GRACE_S, error)
    try:
        yield
    finally:
        timer.close()
        _deadline.reset(token)


def remaining(at_most_s: float | None = None) -> float | None:
    """Return the seconds left, not below 0, at most *at_most_s*; None where nothing limits."""
    until = _deadline.get()
    if until is None:
        return at_most_s
    left = max(until - monotonic(), 0.0)
    return left if at_most_s is None else min(left, at_most_s)
