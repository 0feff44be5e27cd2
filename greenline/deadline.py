"""
One deadline a request; what remains of it is passed down.

1. The deadline is one absolute monotonic time in a context variable.
2. Whoever waits asks ``remaining()`` and gives up by itself.
3. What did not give up is interrupted ``GRACE_S`` later wherever it waits, and again every
   ``GRACE_S`` when it went on, with its stack in the log.
4. Where the time went is counted on the way, and told by the error.
"""

import logging
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from time import monotonic
from typing import TypeVar

import gevent
from greenlet import greenlet

from greenline.errors import DeadlineExceeded

GRACE_S = 0.25

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Interrupt(BaseException):
    """Thrown into a greenlet that goes on after its deadline; no ``except Exception`` sees it."""


class _Clock:
    """One limit: when it is over, and where the time went."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.spent_s: dict[str, float] = {}
        self.fired = 0


_clock: ContextVar[_Clock | None] = ContextVar("deadline", default=None)


@contextmanager
def limit(timeout_s: float) -> Iterator[None]:
    """
    Bound the block to *timeout_s* seconds; inside another limit, to the nearer of both.

    Raises:
        DeadlineExceeded: the time is over; ``spent_s`` tells where it went.
    """
    outer = _clock.get()
    until = monotonic() + timeout_s
    clock = _Clock(until if outer is None else min(until, outer.until))
    if outer is not None:
        clock.spent_s = outer.spent_s
    token = _clock.set(clock)
    timer = gevent.get_hub().loop.timer(max(clock.until - monotonic(), 0) + GRACE_S, GRACE_S)
    interrupt = _Interrupt()
    timer.start(partial(_interrupt, gevent.getcurrent(), clock, interrupt))
    try:
        yield
    except _Interrupt as caught:
        if caught is not interrupt:
            raise
        raise DeadlineExceeded(spent_s=clock.spent_s) from None
    except DeadlineExceeded as error:
        error.spent_s = error.spent_s or clock.spent_s
        raise
    finally:
        timer.close()
        _clock.reset(token)


def _interrupt(late: greenlet, clock: _Clock, error: _Interrupt) -> None:
    """Run in the hub: the greenlet waits somewhere."""
    clock.fired += 1
    if clock.fired > 1 and late.gr_frame is not None:
        stack = "".join(traceback.format_stack(late.gr_frame))
        log.error("a handler goes on %.1f s after its deadline:\n%s", clock.fired * GRACE_S, stack)
    late.throw(error)


@contextmanager
def spending(what: str) -> Iterator[None]:
    """Count the block's time as spent on *what*: queued, connecting, postgres, mongodb."""
    clock = _clock.get()
    if clock is None:
        yield
        return
    started = monotonic()
    try:
        yield
    finally:
        spent = clock.spent_s
        spent[what] = spent.get(what, 0.0) + monotonic() - started


def forget() -> None:
    """Let this greenlet, which works for no request, outlive the one that it was spawned in."""
    _clock.set(None)


def remaining(at_most_s: float | None = None) -> float | None:
    """Return the seconds left, not below 0, at most *at_most_s*; None where nothing limits."""
    clock = _clock.get()
    if clock is None:
        return at_most_s
    left = max(clock.until - monotonic(), 0.0)
    return left if at_most_s is None else min(left, at_most_s)


def stream(chunks: Iterable[T], timeout_s: float) -> Iterator[T]:
    """
    Yield *chunks*, each within *timeout_s* seconds; closed early, close them too.

    Raises:
        DeadlineExceeded: the next chunk took longer.
    """
    iterator = iter(chunks)
    try:
        while True:
            with limit(timeout_s):
                try:
                    chunk = next(iterator)
                except StopIteration:
                    return
            yield chunk
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
