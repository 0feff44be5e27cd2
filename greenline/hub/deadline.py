"""
One deadline a request; what remains of it is passed down.

1. The deadline is one absolute monotonic time in a context variable.
2. Whoever waits asks ``remaining()`` and gives up by itself, or waits in ``wait_for()``.
3. What did not give up is interrupted ``GRACE_S`` later wherever it waits, and again every
   ``GRACE_S`` when it went on, with its stack in the log; never while it cleans up after that.
4. One timer does both: a driver waits several times a request, and a timer for each wait costs
   more than the wait.
5. Where the time went is counted on the way, and told by the error.
"""

import logging
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from itertools import chain, islice
from time import monotonic
from typing import Any, ParamSpec, TypeVar
from weakref import ReferenceType, ref

import gevent
from gevent.hub import Hub
from greenlet import greenlet

from greenline.errors import DeadlineExceeded
from greenline.hub.unwinding import is_unwinding

GRACE_S = 0.25

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class Interrupt(BaseException):
    """Thrown into a greenlet that goes on after its deadline; no ``except Exception`` sees it."""

    def __init__(self, source: object) -> None:
        self.source = source


class _Limit:
    """
    A block's limit: when it is over, who waits for it, and where the time went.

    A class, because every request pays for it: ``contextmanager`` doubles its cost.
    """

    def __init__(self, timeout_s: float, spent_s: dict[str, float] | None) -> None:
        self.timeout_s = timeout_s
        self.spent_s = {} if spent_s is None else spent_s

    def __call__(self, work: Callable[P, T]) -> Callable[P, T]:
        @wraps(work)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            with limit(self.timeout_s):
                return work(*args, **kwargs)

        return limited

    def __enter__(self) -> None:
        outer = _current.get()
        now = monotonic()
        self.until = now + self.timeout_s
        if outer is not None:
            self.until = min(self.until, outer.until)
            self.spent_s = outer.spent_s
        self._token = _current.set(self)
        self._fired = 0
        self._thrown: ReferenceType[BaseException] | None = None
        self.waiting: set[greenlet] = set()  # in wait_for(): several, where the context was copied
        self.hub: Hub | None = gevent.get_hub()  # whose timer ends the waits; None after the block
        self._late = gevent.getcurrent()
        self._timer = self.hub.loop.timer(max(self.until - now, 0), GRACE_S)
        # The loop's own time is that of its last turn: without an update this would fire too early.
        self._timer.start(self._fire, update=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        hub, self.hub = self.hub, None
        if hub is None or hub.dead:  # in a forked child: the hub and its timer are the parent's
            return
        if not self.waiting:  # else another one outlives the block, and the timer ends its wait
            self._timer.close()
        _current.reset(self._token)
        if isinstance(error, Interrupt) and error.source is self:
            raise DeadlineExceeded(spent_s=self.spent_s) from None
        if isinstance(error, DeadlineExceeded):
            error.spent_s = error.spent_s or self.spent_s

    def _fire(self) -> None:
        """Run in the hub: first at the deadline, then every ``GRACE_S``."""
        self._fired += 1
        if self.hub is None:
            self._timer.close()
        if self.hub is None or self._fired == 1:
            while self.waiting:
                self.waiting.pop().throw(DeadlineExceeded())
            return
        if self._thrown is not None and is_unwinding(self._late, self._thrown):
            return
        if self._fired > 2 and self._late.gr_frame is not None:
            late_s = (self._fired - 1) * GRACE_S
            stack = "".join(traceback.format_stack(self._late.gr_frame))
            log.error("a handler goes on %.1f s after its deadline:\n%s", late_s, stack)
        error = Interrupt(self)
        self._thrown = ref(error)
        self._late.throw(error)


_current: ContextVar[_Limit | None] = ContextVar("deadline", default=None)


def forget() -> None:
    """Remove the current limit: in a child process, whose parent's hub has the timer."""
    _current.set(None)


def limit(timeout_s: float, spent_s: dict[str, float] | None = None) -> _Limit:
    """
    Bound a ``with`` block, or each call of a function, to *timeout_s* seconds.

    Inside another limit, to the nearer of both. Where the time goes is added to *spent_s*, seconds
    by name, or to the outer limit's.

    Raises:
        DeadlineExceeded: the time is over; ``spent_s`` tells where it went.
    """
    return _Limit(timeout_s, spent_s)


def wait_for(watcher: Any) -> None:
    """
    Wait in the hub until *watcher* is ready.

    Raises:
        DeadlineExceeded: the deadline passed first.
    """
    wait_in(gevent.get_hub().wait, watcher)


def wait_in(wait: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """
    Return what *wait* returns, which does nothing but wait in the hub.

    Raises:
        DeadlineExceeded: the deadline passed first.
    """
    current = _current.get()
    if current is None:
        return wait(*args, **kwargs)
    left_s = current.until - monotonic()
    if left_s <= 0:
        raise DeadlineExceeded
    if current.hub is not gevent.get_hub():  # a copy of the context outlived the block
        with gevent.Timeout(left_s, DeadlineExceeded()):
            return wait(*args, **kwargs)
    me = gevent.getcurrent()
    current.waiting.add(me)
    try:
        return wait(*args, **kwargs)
    finally:
        current.waiting.discard(me)


class _Spending:
    """A block whose time counts."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._limit = _current.get()
        self._started = monotonic()

    def __exit__(self, *_: object) -> None:
        if self._limit is not None:
            spent = self._limit.spent_s
            spent[self._what] = spent.get(self._what, 0.0) + monotonic() - self._started


def spending(what: str) -> _Spending:
    """Count the block's time as spent on *what*: queued, connecting, postgres, mongodb."""
    return _Spending(what)


def remaining(at_most_s: float | None = None) -> float | None:
    """Return the seconds left, not below 0, at most *at_most_s*; None where nothing limits."""
    current = _current.get()
    if current is None:
        return at_most_s
    left = max(current.until - monotonic(), 0.0)
    return left if at_most_s is None else min(left, at_most_s)


class Stream(Iterator[T]):
    """
    *chunks*, the first one read at once, in this request's time, and each further one within
    *timeout_s* seconds.

    ``close()`` closes them and their *source*, begun or not.

    Raises:
        DeadlineExceeded: the next chunk took longer.
    """

    def __init__(self, chunks: Iterator[T], source: object, timeout_s: float) -> None:
        self._sources = (chunks, source)
        self._timeout_s = timeout_s
        try:
            self._chunks = chain(list(islice(chunks, 1)), chunks)
        except BaseException:
            self.close()
            raise

    def __next__(self) -> T:
        with limit(self._timeout_s):
            return next(self._chunks)

    def close(self) -> None:
        """Close the chunks and their source."""
        for one in self._sources:
            close = getattr(one, "close", None)
            if close is not None:
                close()
