"""
Interrupt an application that computes, as the interpreter interrupts a thread.

A thread that computes lets another one run after 5 ms (``sys.getswitchinterval()``); a greenlet
keeps its worker until it waits. A page that computes for a second would stop all other requests of
the worker, and its heartbeat. So code of the application that has computed for long waits for its
next turn (:mod:`~greenline.hub.turns`), wherever it is, and then after each interval. Most requests
end before the first one.

The signal of the timer that counts the processor's time of this process (``ITIMER_VIRTUAL``) asks
for it: none comes while nothing computes. For code that waits outside of the hub, for the disk, the
watchdog's thread asks.

Code that was written for threads expects this; the runtime's own and gevent's does not. Nor do
native locks, which know no greenlets: those that the log may take in the hub, the import system's
own, those of files and of libraries. So nothing is interrupted

- while a function of the runtime, of gevent or of the log is in progress, nor in the import system,
- in a call into C, nor in what native code calls (:mod:`~greenline.hub.native_callers`),
- where something is kept per native thread: by a library, a profiler or a debugger.
"""

import atexit
import ctypes
import opcode
import os
import signal
import sys
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable
from functools import partial, wraps
from math import inf
from time import monotonic, thread_time
from types import FrameType
from typing import Any

import gevent
from gevent.hub import Waiter
from gevent.monkey import get_original
from greenlet import getcurrent, greenlet

from greenline.hub import collector, native_locals
from greenline.hub.handlers import Handler, end_wait
from greenline.hub.native_callers import find_depth
from greenline.hub.schedstat import QueuedTime
from greenline.hub.turns import Turns

SIGNAL = signal.SIGVTALRM
FIRST = 4  # intervals of a request before it is interrupted for the first time
# Packages whose functions are not interrupted, nor what they call.
RUNTIME = frozenset({"gevent", "greenline", "logging"})
# Packages whose functions are not interrupted: they hold locks which the hub may need. Of importlib
# those of the modules are not among these: they belong to a greenlet, as each patched lock.
LOCKING = frozenset({"concurrent", "importlib", "queue", "threading"})
# Functions of these call the application, where it may wait: what they call is interrupted.
CALLERS = (
    "greenline.flask", "greenline.http.response", "greenline.hub.early_imports",
    "greenline.hub.request_timeout", "greenline.offload.imports", "greenline.offload.tasks",
    "greenline.worker.worker",
)  # fmt: skip
# Where one of these is loaded nothing is interrupted: what they set for a block, such as no_grad(),
# is set for a native thread.
NATIVE = "torch", "jax", "tensorflow", "paddle", "cupy", "osgeo", "rasterio", "fiona"
# Instructions at which a function or the next round of a loop begins; Python 3.11 joins a
# comparison and the jump behind it. At others a function of C may be in progress that looks for
# signals: a file does so after each write, while it holds its native lock.
BEGINS = frozenset(
    number
    for name, number in opcode.opmap.items()
    if name in ("RESUME", "COMPARE_OP") or "JUMP_BACKWARD" in name
)
LOOK_S = 0.001  # so often calls into C are looked for
MIN_CALL_S = 0.0002  # a call into C that is noted
IN_REPR = "Py_Repr"  # in the dict of a native thread: the objects whose repr() is in progress
_get_ident: Callable[[], int] = get_original("_thread", "get_ident")
_run_thread: Any = threading.Thread._bootstrap  # type: ignore[attr-defined]
THREAD = _run_thread.__code__

# Those that compute, and wait for their next turn or for a thread that computes for them: an
# exception of their deadline would be raised between any two instructions.
interrupted: set[greenlet] = set()


def interrupted_requests() -> int:
    """Return the number of requests that compute, and wait for a turn or a thread."""
    return sum(type(each) is Handler for each in interrupted)


class _Again:
    """Its negation lets the signal come again, when its handler has returned."""

    # After a call the interpreter looks for signals: within the handler.
    __neg__ = staticmethod(partial(interrupt_main, SIGNAL))


_again: Any = _Again()


class Slices:
    """
    Interrupt what computes in the main thread.

    :param turns: in which what was interrupted waits.
    :param note_blocked: called with a request or the task of a thread that has kept the main
        thread in C code without the interpreter's lock; with the seconds, but for those in which it
        waited for a processor; with those in which it used one; and with the frame that goes on
        now, or None. Default: do nothing.
    :param interval_s: seconds, float. A request or a thread is interrupted when it has kept the
        main thread for ``FIRST`` of these, but for the time in which that waited for a processor,
        and after each further one.
    """

    def __init__(
        self,
        turns: Turns,
        interval_s: float,
        note_blocked: Callable[[Any, float, float, Any], object] = lambda *_: None,
    ) -> None:
        self._turns = turns
        self._note_blocked = note_blocked
        self._interval_s = interval_s
        self._hub = gevent.get_hub()
        # The id: a reference to a greenlet would keep what code keeps per thread.
        self._last = (0, 0)
        self._since_s = 0.0  # when this one kept the thread for the first time
        self._queued = QueuedTime()
        # Of the thread, to be read in another one; not on macOS, where nothing is noted.
        self._cpu_clock: Any = getattr(time, "pthread_getcpuclockid", lambda _: None)(_get_ident())
        self._asked_s = inf  # since when none was answered that interrupt() has asked for
        self._asked_computed_s = self._asked_queued_s = 0.0
        self._is_started = self._is_ticking = False
        self._depth: Any = find_depth()  # None: it cannot be read, and nothing is interrupted
        self._depth_of_loop = -1  # until the loop has called Python for the first time
        self._of_thread = native_locals.dict_of_thread()

    def start(self, set_handler: Any = signal.signal) -> None:
        """
        Start the timer, unless the application has a handler for its signal.

        :param set_handler: Python's ``signal.signal``, where the application has another one.
        """
        if self._depth is None or signal.getsignal(SIGNAL) != signal.SIG_DFL:
            return
        self._hub.loop.run_callback(self._note_depth)
        set_handler(SIGNAL, self._tick)
        signal.siginterrupt(SIGNAL, False)
        # The signal ends a process without a handler, as a program is that a process executes in
        # its own place, and Python at its end.
        for name in ("execv", "execve"):  # which all others of os call
            if not hasattr(execute := getattr(os, name), "__wrapped__"):
                setattr(os, name, _without_timer(execute))
        atexit.register(self.stop)
        self._is_started = True
        self._start_timer()

    def interrupt(self, is_look: bool = False) -> None:
        """
        Interrupt what keeps the thread without using the processor; call it in another one.

        :param is_look: whether the calling thread has got the interpreter's lock at once, bool.
            Then the other one has let it go, and if it does not answer it is in C code, which is
            noted. Default False.
        """
        if not self._is_started:
            return
        asks = is_look and self._asked_s == inf and self._cpu_clock is not None
        if asks:
            self._asked_computed_s = time.clock_gettime(self._cpu_clock)
            self._asked_s = monotonic()
        # Python calls the handler as if there had been a signal: no call into C sees one.
        interrupt_main(SIGNAL)
        if asks:
            # Not before: it lets the interpreter's lock go, and what began then would be asked.
            self._asked_queued_s = self._queued.seconds()

    def _start_timer(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, self._interval_s, self._interval_s)

    def stop(self) -> None:
        """Stop the timer."""
        self._is_started = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self._queued.close()
        atexit.unregister(self.stop)

    def _tick(self, _: int, frame: FrameType | None) -> object:
        # In what this calls the interpreter looks for signals as well.
        if self._is_ticking:
            self._asked_s = inf
            return None
        self._is_ticking = True
        try:
            if self._asked_s < inf:
                self._note_call_into_c(frame)
            found = self._find(frame)
        finally:
            self._is_ticking = False
        if found is _again:
            return -found
        if found is not None:
            self._wait(found)
        return None

    def _note_call_into_c(self, frame: FrameType | None) -> None:
        asked_s, self._asked_s = self._asked_s, inf
        me: Any = getcurrent()
        of_thread: Any = getattr(me, "task", None)  # of greenline.offload.tasks
        measured, what = (me, me.request) if type(me) is Handler else (of_thread, of_thread)
        # If the hub was idle then, this one has come since.
        if what is None or not measured.computed_at(asked_s, self._asked_computed_s):
            return
        # Not the wait for a processor of before: a short call would be less than nothing.
        queued_s = self._queued.seconds() - self._asked_queued_s
        blocked_s = monotonic() - asked_s - queued_s
        computed_s = thread_time() - self._asked_computed_s
        if blocked_s >= MIN_CALL_S:  # else it was about to answer
            # Between two looks there may be several calls that are shorter.
            looks = max(LOOK_S / blocked_s, 1.0)
            self._note_blocked(what, looks * blocked_s, looks * computed_s, frame)

    def _find(self, frame: FrameType | None) -> Any:
        """Return the greenlet to interrupt; ``_again`` after the next instruction, or None."""
        me = getcurrent()
        if me is self._hub or not isinstance(me, gevent.Greenlet):
            return None
        # In one round of the loop it has not waited.
        last, self._last = self._last, (id(me), self._hub.loop.iteration)
        now = self._clock()
        if last != self._last:
            self._since_s = now
        # Less than a half: the timer's signals do not come exactly in time.
        needed_s = ((1 if self._is_known(me) else FIRST) - 0.5) * self._interval_s
        if now - self._since_s < needed_s or frame is None or self._depth() != self._depth_of_loop:
            return None
        if frame.f_code.co_code[frame.f_lasti] not in BEGINS:
            return _again
        if not _may_wait(frame):
            return None
        self._since_s = now  # a signal that comes before its wait is none of its next slice
        return me

    def _clock(self) -> float:
        """Return the seconds of the thread, but for those in which it waited for a processor."""
        return monotonic() - self._queued.seconds()

    def _is_known(self, me: Any) -> bool:
        """Return whether *me* was interrupted before, or surely will be."""
        if getattr(me, "turn", None) is not None:
            return True
        known_s = self._turns.known_s(me.request) if type(me) is Handler else 0.0
        return known_s >= FIRST * self._interval_s

    def _note_depth(self) -> None:
        self._depth_of_loop = self._depth()

    def _wait(self, me: Any) -> None:
        waiter: Waiter[None] = Waiter()
        # Else the repr() of a list in another greenlet would be that of a list in itself.
        in_repr = self._of_thread.pop(IN_REPR, None)
        errno = ctypes.get_errno()  # the application may not have read it yet
        interrupted.add(me)
        collector.waiting.add(me)
        collector.suspend()
        try:
            is_request = type(me) is Handler
            request, computed_s = (me.request, me.pause()) if is_request else (None, inf)
            begin, last = partial(waiter.switch, None), getattr(me, "turn", None)
            me.turn = self._turns.wait(request, begin, max(computed_s, 0.0), last)
            waiter.get()
            if is_request:
                me.go_on(computed_s)
            else:
                end_wait()
            # Until the next signal, which then comes after one interval.
            self._last, self._since_s = (id(me), self._hub.loop.iteration), self._clock()
            self._start_timer()
        finally:
            interrupted.discard(me)
            ctypes.set_errno(errno)
            collector.waiting.discard(me)
            collector.resume()
            if collector.waiting:
                self._hub.loop.run_callback(collector.suspend)  # a thread does not call it
            if in_repr is not None:
                self._of_thread[IN_REPR] = in_repr


def _may_wait(innermost: FrameType) -> bool:
    """Return whether the application runs in *innermost*, where a thread may be interrupted."""
    if is_set_for_a_thread():
        return False
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return False
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code is not THREAD:
        name = str(frame.f_globals.get("__name__"))
        package = name.partition(".")[0]
        if frame is innermost and package in LOCKING:
            return False
        if package in RUNTIME:
            return frame is not innermost and name.startswith(CALLERS)
        frame = frame.f_back
    return frame is not None and frame is not innermost


def is_set_for_a_thread() -> bool:
    """Return whether a library is loaded that sets something for a native thread, for a block."""
    if any(name in sys.modules for name in NATIVE):
        return True
    # errstate() is that of a native thread before numpy 2.
    numpy = sys.modules.get("numpy")
    return numpy is not None and str(getattr(numpy, "__version__", "0")).startswith(("0", "1."))


def _without_timer(execute: Any) -> Any:
    """Return *execute*, which executes a program without the timer."""

    @wraps(execute)
    def executing(*args: Any, **kwargs: Any) -> Any:
        times = signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        try:
            return execute(*args, **kwargs)
        finally:  # it has failed
            signal.setitimer(signal.ITIMER_VIRTUAL, *times)

    return executing


def _after_fork_in_child() -> None:
    interrupted.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
