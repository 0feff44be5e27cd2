"""
Let psycopg 3 wait in the hub.

By itself it waits in gevent's poll, which costs a short statement half as much again; or, imported
before the patching, in C, which blocks the worker.
"""

import sys
from collections.abc import Generator
from inspect import signature
from select import POLLIN, POLLOUT
from time import monotonic
from types import ModuleType
from typing import Any, TypeVar

import gevent
from gevent.hub import Waiter

from greenline.hub import deadline
from greenline.hub.poll import which
from greenline.offload.imports import after_import

T = TypeVar("T")

# What psycopg waits for, what is ready, and gevent's events: the numbers are the same.
READ, WRITE = 1, 2


def install() -> None:
    """Replace two functions of psycopg, once the application imports it; before 3.2 they differ."""
    after_import("psycopg.waiting", _replace)


def _replace(waiting: ModuleType) -> None:
    if "interval" in signature(waiting.wait_conn).parameters:
        setattr(waiting, "wait", wait)  # noqa: B010
        setattr(waiting, "wait_conn", wait_conn)  # noqa: B010


def wait(
    gen: Generator[int, int, T], fileno: int, interval: float = 0.0, timeout: float | None = None
) -> T:
    """
    Run an operation of a connection.

    :param gen: yields what it waits for, and is sent what is ready.
    :param fileno: the descriptor of the connection, int.
    :param interval: seconds until *gen* goes on though nothing is ready, float.
    :param timeout: seconds for the operation, float; None: no limit.
    :returns: the result of *gen*.
    """
    until = None if timeout is None else monotonic() + timeout
    result: list[T] = []
    # Many end at once, as for each row of a COPY: a loop's end costs less than a StopIteration.
    # After an interrupt psycopg goes on with *gen*: the traceback keeps *steps* and so it is open.
    steps = _into(result, gen)
    for state in steps:
        try:
            while True:
                state = steps.send(_ready(fileno, state, interval, until))
                _check(until)
        except StopIteration:
            break
    return result[0]


def _into(result: list[T], gen: Generator[int, int, T]) -> Generator[int, int]:
    result.append((yield from gen))


def wait_conn(
    gen: Generator[tuple[int, int], int, T], interval: float = 0.0, timeout: float | None = None
) -> T:
    """Connect, where *gen* yields the descriptor as well; parameters as of :func:`wait`."""
    until = None if timeout is None else monotonic() + timeout
    try:
        fileno, state = next(gen)
        while True:
            fileno, state = gen.send(_ready(fileno, state, interval, until))
            _check(until)
    except StopIteration as end:
        result: T = end.value
        return result


def _check(until: float | None) -> None:
    if until is not None and monotonic() >= until:
        errors: Any = sys.modules["psycopg.errors"]
        raise errors._WaitTimeout("wait timeout expired")


def _ready(fileno: int, state: int, interval_s: float, until: float | None) -> int:
    """Wait until the descriptor is ready, or the interval has passed; return what is ready."""
    # It can be written to as a rule, which takes no visit to the hub.
    if state & WRITE and (ready := _polled(fileno, state)):
        return ready
    if until is not None:
        interval_s = min(interval_s, until - monotonic())
    hub = gevent.get_hub()
    waiter: Waiter[int] = Waiter(hub)
    watcher, timer = hub.loop.io(fileno, state), hub.loop.timer(max(interval_s, 0.0))
    try:
        watcher.start(waiter.switch, state)
        # Another greenlet may close the connection meanwhile, and nothing becomes ready any more.
        timer.start(waiter.switch, 0)
        ready = deadline.wait_in(waiter.get)
    finally:
        watcher.close()
        timer.close()
    return ready if ready == READ else _polled(fileno, state)


def _polled(fileno: int, state: int) -> int:
    """Return what is ready; a closed descriptor is, and libpq raises its error."""
    readable = READ if state & READ and which((fileno,), POLLIN) else 0
    return readable | (WRITE if state & WRITE and which((fileno,), POLLOUT) else 0)
