"""Yield to the other greenlets, including those that wait for a socket."""

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import gevent
from gevent.hub import Waiter

ROUND_S = 0.0002  # a round of the loop costs a hundredth of this
FIRST = 2  # libev's highest priority

_round_s = 0.0  # when the last round ended
_active: set[Any] = set()  # watchers of rounds, of all hubs


class Rounds:
    """
    Call a function once in each round of a loop, between :meth:`start` and :meth:`stop`.

    :param loop: the loop of a hub.
    """

    def __init__(self, loop: Any) -> None:
        # libev calls an idle watcher of the highest priority in each round, whatever else is
        # pending.
        self._watcher: Any = loop.idle(priority=FIRST)

    @property
    def active(self) -> bool:
        """Whether the function is called."""
        return bool(self._watcher.active)

    def start(self, func: Callable[..., object], *args: object) -> None:
        """Call *func* from now on; in the hub."""
        _active.add(self._watcher)
        self._watcher.start(func, *args)

    def stop(self) -> None:
        """Call it no more."""
        self._watcher.stop()
        _active.discard(self._watcher)


def stop_rounds(loop: Any) -> None:
    """
    Stop all that is called in each round of *loop*, which is about to be destroyed in a child.

    The next default loop is in the same memory, and libev keeps there how many idle watchers are
    active: the child would never wait for an event, and compute for as long as it lives.
    """
    for watcher in _active:
        if watcher.loop is loop:
            watcher.stop()
    _active.clear()


def yield_to_hub() -> None:
    """Return after the other greenlets have run; sometimes after a round of the event loop."""
    global _round_s
    if monotonic() - _round_s < ROUND_S:
        # After sleep(0) gevent polls sockets only every fiftieth time, and not before 5 ms have
        # passed: with 1 ms of work each time, a ready socket would wait for 50 ms.
        gevent.sleep(0)
    else:
        # A round costs one system call more than sleep(0).
        hub: Any = gevent.get_hub()
        with hub.loop.idle(priority=FIRST) as watcher:
            _active.add(watcher)
            try:
                hub.wait(watcher)
            finally:
                _active.discard(watcher)
        _round_s = monotonic()


def join_all(greenlets: "Iterable[gevent.Greenlet[..., Any]]", timeout_s: float) -> None:
    """
    Wait for the end of all *greenlets*.

    :param greenlets: iterable of gevent's greenlets.
    :param timeout_s: seconds to wait at most, float.
    """
    # joinall's own timeout begins with the loop's last round. If a handler has computed since then,
    # that part is missing.
    with gevent.Timeout(timeout_s, False):  # type: ignore[arg-type]
        gevent.joinall(list(greenlets))


def wake(waiter: "Waiter[Any]") -> None:
    """Resume the greenlet that waits in *waiter*; callable from any native thread."""
    loop = waiter.hub.loop
    if waiter.hub is gevent.get_hub():
        loop.run_callback(waiter.switch, None)
    else:
        # Only this variant wakes the loop of another thread, which may be waiting in the kernel.
        loop.run_callback_threadsafe(waiter.switch, None)
