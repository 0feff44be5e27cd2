"""
Interrupt an application that computes, as the interpreter interrupts a thread.

A thread that computes lets another one run after 5 ms (``sys.getswitchinterval()``); a greenlet
keeps its worker until it waits. A page that computes for a second would stop all other requests of
the worker, and its heartbeat. So code of the application that has computed for so long waits for
its next turn (:mod:`~greenline.hub.turns`), between two instructions, wherever it is.

A signal of the timer that counts the processor's time of this process (``ITIMER_VIRTUAL``) asks
for it: it comes only while something computes, and interrupts no wait.

Code that was written for threads expects this; the runtime's own and gevent's does not. Nor do
native locks, which know no greenlets: the import system's, and those that the log may take in the
hub. So nothing is interrupted while a function of theirs is in progress. Where a library keeps
state per native thread, code that computes keeps the worker as before.
"""

import atexit
import signal
import sys
import threading
from functools import partial
from types import FrameType
from typing import Any

import gevent
from gevent.hub import Waiter
from greenlet import getcurrent, greenlet

from greenline.hub.handlers import Handler
from greenline.hub.turns import Turns

SIGNAL = signal.SIGVTALRM
# Packages whose functions are not interrupted, nor what they call.
RUNTIME = frozenset({"gevent", "greenline", "importlib", "logging"})
# Packages whose functions are not interrupted: they hold locks which the hub may need.
LOCKING = frozenset({"concurrent", "queue", "threading"})
# Functions of these call the application, where it may wait: what they call is interrupted.
CALLERS = (
    "greenline.flask", "greenline.http.response", "greenline.hub.early_imports",
    "greenline.hub.request_timeout", "greenline.worker.worker",
)  # fmt: skip
# Their settings of a block, such as no_grad(), are those of a native thread.
STATE_PER_THREAD = "torch", "jax", "tensorflow", "paddle"
_run_thread: Any = threading.Thread._bootstrap  # type: ignore[attr-defined]
THREAD = _run_thread.__code__

# Those that wait for their next turn: an exception would be raised between any two instructions.
computing: set[greenlet] = set()


class Slices:
    """
    Interrupt what computes in the main thread.

    :param turns: in which what was interrupted waits.
    :param interval_s: seconds of processor time, float: what has computed for one to two of these
        is interrupted.
    """

    def __init__(self, turns: Turns, interval_s: float) -> None:
        self._turns = turns
        self._interval_s = interval_s
        self._hub = gevent.get_hub()
        self._last: tuple[greenlet | None, float, int] = (None, 0.0, 0)

    def start(self, set_handler: Any = signal.signal) -> None:
        """
        Begin.

        :param set_handler: Python's ``signal.signal``, where the application has another one.
        """
        set_handler(SIGNAL, self._tick)
        signal.siginterrupt(SIGNAL, False)
        # Python's end restores the default, which ends the process.
        atexit.register(self.stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, self._interval_s, self._interval_s)

    def stop(self) -> None:
        """End."""
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        atexit.unregister(self.stop)

    def _tick(self, _: int, frame: FrameType | None) -> None:
        me = getcurrent()
        if me is self._hub or not isinstance(me, gevent.Greenlet):
            return
        since_s = me.since_s if type(me) is Handler else 0.0
        last, self._last = self._last, (me, since_s, self._hub.loop.iteration)
        # At the second time in one round of the loop, so it has not waited since the first.
        if last == self._last and _may_wait(frame):
            self._wait(me)

    def _wait(self, me: greenlet) -> None:
        waiter: Waiter[None] = Waiter()
        computing.add(me)
        try:
            if type(me) is Handler:
                me.wait_for_turn(waiter)
            else:
                self._turns.wait(None, partial(waiter.switch, None))
                waiter.get()
        finally:
            computing.discard(me)


def _may_wait(frame: FrameType | None) -> bool:
    """Return whether the application runs in *frame*, where a thread may be interrupted."""
    if any(name in sys.modules for name in STATE_PER_THREAD) or _has_old_numpy():
        return False
    innermost = frame
    while frame is not None and frame.f_code is not THREAD:
        name = frame.f_globals.get("__name__", "")
        package = name.partition(".")[0]
        if frame is innermost and package in LOCKING:
            return False
        if package in RUNTIME:
            return frame is not innermost and name.startswith(CALLERS)
        frame = frame.f_back
    return frame is not None and frame is not innermost


def _has_old_numpy() -> bool:
    # errstate() is that of a native thread before numpy 2.
    numpy = sys.modules.get("numpy")
    return numpy is not None and str(getattr(numpy, "__version__", "0")).startswith(("0", "1."))
