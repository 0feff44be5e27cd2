"""
Give each request one deadline, an absolute monotonic time, and pass the remaining time down.

The limit is in a context variable. A wait asks :func:`remaining` and ends by itself, or waits in
:func:`wait_for`. A greenlet that goes on after its deadline is interrupted ``GRACE_S`` later,
wherever it waits, and every ``GRACE_S`` again. The time spent is counted by name, for the error and
for the request's line in the access log.
"""

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import wraps
from itertools import chain, islice
from math import inf
from time import monotonic
from typing import Any, ParamSpec, TypeVar
from weakref import ReferenceType, ref

import gevent
from gevent.hub import Hub
from greenlet import greenlet

from greenline.errors import DeadlineExceeded
from greenline.hub import lateness, slow_waits
from greenline.hub.slices import interrupted
from greenline.hub.unwinding import is_unwinding

# In the environ: seconds by name, dict, and the name of what the request waits for now.
SPENT, WAITS_FOR = "greenline.spent", "greenline.waits_for"
HUB = "hub"  # the name of the time in which the hub was late to go on
GRACE_S = 0.25  # after a timeout, for the application's own answer

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class Interrupt(BaseException):
    """
    Interrupt a greenlet that goes on after its deadline; ``except Exception`` does not catch it.

    :param source: the limit that throws it, which alone translates it.
    """

    def __init__(self, source: object) -> None:
        self.source = source


class _Limit:
    """The limit of a block: its end, the greenlets that wait under it, and where the time went."""

    # A class, because every request pays for it: ``contextmanager`` doubles the cost.

    def __init__(self, timeout_s: float, spent_s: dict[str, float] | None) -> None:
        self.timeout_s = timeout_s
        if spent_s is None:
            spent_s = _requests_spent_s()
        self.spent_s = {} if spent_s is None else spent_s

    def __call__(self, work: Callable[P, T]) -> Callable[P, T]:
        @wraps(work)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            with limit(self.timeout_s):
                return work(*args, **kwargs)

        return limited

    def __enter__(self) -> None:
        self.outer = outer = _current.get()
        now = monotonic()
        self.until = now + self.timeout_s
        if outer is not None:
            self.until = min(self.until, outer.until)
            self.spent_s = outer.spent_s
        self._token = _current.set(self)
        self._fired = 0
        self._thrown: ReferenceType[BaseException] | None = None
        # The greenlets in wait_for(). Several, where the context was copied.
        self.waiting: set[greenlet] = set()
        # The hub of the timer; None after the block, which _fire() and wait_in() look at.
        self.hub: Hub | None = gevent.get_hub()
        self._late = gevent.getcurrent()
        # One timer for all waits of the block: a driver waits several times a request, and a timer
        # for each wait costs more than the wait.
        self._timer = self.hub.loop.timer(max(self.until - now, 0), GRACE_S)
        # The loop's time is that of its last round: without an update this would fire too early.
        self._timer.start(self._fire, update=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        hub, self.hub = self.hub, None
        # In a forked child the hub and its timer are the parent's.
        if hub is None or hub.dead:
            return
        # A greenlet with a copy of the context may wait beyond the block: the timer ends its wait.
        if not self.waiting:
            self._timer.close()
        _current.reset(self._token)
        # An outer limit's Interrupt passes: its own block translates it.
        if isinstance(error, Interrupt) and error.source is self:
            raise DeadlineExceeded(spent_s=self.spent_s) from None
        if isinstance(error, DeadlineExceeded):
            error.spent_s = error.spent_s or self.spent_s

    def _fire(self) -> None:
        """Run in the hub: first at the deadline, then every ``GRACE_S``."""
        self._fired += 1
        if self.hub is None:
            self._timer.close()
        # At the deadline only a wait in wait_for() fails. Other code has GRACE_S to end by itself.
        if self.hub is None or self._fired == 1:
            while self.waiting:
                self.waiting.pop().throw(DeadlineExceeded())
            return
        if self._late in interrupted:
            return
        # A second exception would interrupt the clean-up: a rollback, the release of a connection.
        if self._thrown is not None and is_unwinding(self._late, self._thrown):
            return
        if self._fired > 2 and self._late.gr_frame is not None:
            late_s = (self._fired - 1) * GRACE_S
            stack = "".join(traceback.format_stack(self._late.gr_frame))
            with on_behalf_of(self._late):
                log.error("a handler goes on %.1f s after its deadline:\n%s", late_s, stack)
        error = Interrupt(self)
        # Weak: the exception must disappear when the greenlet has swallowed it.
        self._thrown = ref(error)
        self._late.throw(error)


_current: ContextVar[_Limit | None] = ContextVar("deadline", default=None)
_environ: ContextVar[dict[str, Any] | None] = ContextVar("environ", default=None)

# For code that copies the variables of another context: a limit is its block's alone.
VARIABLE = _current

# Set the environ of the request that this greenlet serves: spending() counts in it, unless a limit
# has a dict of its own. An alias, not a function of its own: every request calls it.
count_in = _environ.set
# Return the environ of the request that this greenlet serves, or None.
request_environ = _environ.get


@contextmanager
def on_behalf_of(other: greenlet) -> Iterator[None]:
    """Log in the ``with`` block, which does not wait, as *other* would: with its request."""
    token = _environ.set(environ_of(other))
    try:
        yield
    finally:
        _environ.reset(token)


def environ_of(other: greenlet) -> dict[str, Any] | None:
    """Return the environ of the request that another greenlet serves; None: it serves none."""
    # Without a frame, when all of its code is compiled, it seems to run in another thread.
    context = None if other.gr_frame is None else other.gr_context
    return None if context is None else context.get(_environ)


def _requests_spent_s() -> dict[str, float] | None:
    """Return the seconds by name of the request that this greenlet serves; None: it serves none."""
    environ = _environ.get()
    # Made here: most requests of some applications spend none.
    return None if environ is None else environ.setdefault(SPENT, {})


def entered_in(context: Context) -> list[_Limit]:
    """Return the limits in *context* that are not those of this greenlet, the innermost first."""
    own, found = _current.get(), []
    each = context.get(_current)
    while each is not None and each is not own:
        found.append(each)
        each = each.outer
    return found


def abandon(limits: list[_Limit]) -> None:
    """Let *limits* interrupt nothing any more: the greenlet that they interrupt goes on."""
    for each in limits:
        each.hub = None


def adopt(context: Context) -> None:
    """
    Set the context variables that have another value in *context*, but for the deadlines in force.

    :param context: that of a call on behalf of this greenlet, which began as a copy of its own.
    """
    variable: ContextVar[Any]
    for variable, value in context.items():
        # The default is no value of a variable.
        if variable.get(context) is not value and variable is not VARIABLE:
            variable.set(value)


def forget() -> None:
    """Remove the current limit, in a forked child: its timer is in the hub of the parent."""
    _current.set(None)


def limit(timeout_s: float, spent_s: dict[str, float] | None = None) -> _Limit:
    """
    Bound the time of a ``with`` block, or of each call of a decorated function.

    Inside another limit the earlier end counts.

    :param timeout_s: seconds that the block may take, float.
    :param spent_s: dict of seconds by name, to which :func:`spending` adds. Default: that of the
        request, or a new one. Inside another limit that of the outer one is used, and no other.
    :returns: a context manager, which is a decorator as well.
    :raises DeadlineExceeded: the block took longer; its ``spent_s`` has the dict.
    """
    return _Limit(timeout_s, spent_s)


def wait_for(watcher: Any) -> None:
    """
    Wait in the hub until *watcher* is ready.

    :raises DeadlineExceeded: the deadline passed first.
    """
    wait_in(gevent.get_hub().wait, watcher)


def wait_in(wait: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """
    Call *wait* and end its wait at the deadline.

    :param wait: a function that only waits in the hub; the deadline's error is raised in it.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :returns: the result of *wait*.
    :raises DeadlineExceeded: the deadline passed first.
    """
    current = _current.get()
    if current is None:
        return wait(*args, **kwargs)
    left_s = current.until - monotonic()
    if left_s <= 0:
        raise DeadlineExceeded
    # A copy of the context outlived the block, or is in another thread: the timer is no use here.
    if current.hub is not gevent.get_hub():
        with gevent.Timeout(left_s, DeadlineExceeded()):
            return wait(*args, **kwargs)
    me = gevent.getcurrent()
    current.waiting.add(me)
    try:
        return wait(*args, **kwargs)
    finally:
        current.waiting.discard(me)


class _Spending:
    """A block whose time is counted."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        environ = self._environ = _environ.get()
        current = _current.get()
        if environ is not None:
            environ[WAITS_FOR] = self._what
            self._spent_s = environ.setdefault(SPENT, {}) if current is None else current.spent_s
        else:
            self._spent_s = None if current is None else current.spent_s
        self._started = monotonic()

    def __exit__(self, *_: object) -> None:
        now = monotonic()
        took_s = now - self._started
        if (spent := self._spent_s) is not None:
            if took_s >= lateness.MIN_WAIT_S:
                late_s = lateness.at_end_of(self._started, now)
                if late_s > 0:
                    spent[HUB] = spent.get(HUB, 0.0) + late_s
                    took_s -= late_s
            spent[self._what] = spent.get(self._what, 0.0) + took_s
        if (environ := self._environ) is not None:
            environ[WAITS_FOR] = None  # an outer block's name is lost: blocks seldom nest
            if slow_waits.min_s < inf:
                slow_waits.note(environ, self._what, took_s)


_kind = _Spending


def spending(what: str) -> _Spending:
    """
    Count the time of a block.

    :param what: its name, str: pool, connecting, postgres, mongodb or writing.
    """
    return _kind(what)


def report_waits(report: Callable[[str, float], None]) -> None:
    """
    Report each wait for a connection from now on, when it has ended.

    :param report: is called with ``pool`` or ``connecting``, and the seconds.
    """
    global _kind

    class Reported(_Spending):
        def __exit__(self, *_: object) -> None:
            super().__exit__()
            if self._what in ("pool", "connecting"):
                report(self._what, monotonic() - self._started)

    _kind = Reported


def remaining(max_s: float | None = None) -> float | None:
    """
    Return the seconds until the deadline, not below 0.

    :param max_s: an upper bound, float; None (the default): no bound.
    :returns: seconds, float; *max_s* where there is no deadline.
    """
    current = _current.get()
    if current is None:
        return max_s
    left = max(current.until - monotonic(), 0.0)
    return left if max_s is None else min(left, max_s)


class Stream(Iterator[T]):
    """
    Read the first chunk at once, and give each further one a limit of its own.

    :param chunks: an iterator. Its first item is read here, under the request's deadline.
    :param source: an object that :meth:`close` closes as well.
    :param timeout_s: seconds for each further chunk, float.
    :raises DeadlineExceeded: the next chunk took longer.
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
        # Both: a generator that has not begun runs no ``finally``, so it cannot close its source.
        for one in self._sources:
            close = getattr(one, "close", None)
            if close is not None:
                close()
