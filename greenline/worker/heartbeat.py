"""
Notify gunicorn's arbiter that a worker is alive, even while a view computes.

gunicorn kills a worker that has not notified it for ``timeout`` seconds. The hub notifies, but not
while a view computes; then a native thread does, as long as the hub's thread uses the CPU or waits
for it. A thread that waits for anything else may be stuck and is not covered.
"""

import os
from collections.abc import Callable
from functools import partial
from time import clock_gettime, monotonic, pthread_getcpuclockid
from typing import Any

from gevent.monkey import get_original

from greenline.hub import schedstat
from greenline.hub.watchdog import without_collection

PERIOD_S = 1.0
COMPUTES = 0.1  # part of the period in which a thread that computes is active
MAX_TIMEOUTS = 10  # after so many a computation is assumed to be an endless loop


class Heartbeat:
    """
    Notify the arbiter from the hub, and from a native thread while the hub is blocked.

    :param notify: notifies the arbiter.
    :param timeout_s: gunicorn's ``timeout``, float, in seconds; 0 disables it.
    """

    def __init__(self, notify: Callable[[], object], timeout_s: float) -> None:
        self._notify = notify
        self._max_s = MAX_TIMEOUTS * timeout_s
        self._beat_s = monotonic()
        self._before: bytes | float = 0.0
        self._now: bytes | float = 0.0

    def beat(self) -> None:
        """Notify the arbiter; call it from a greenlet, at least once in ``PERIOD_S``."""
        self._beat_s = monotonic()
        self._notify()

    def start(self) -> None:
        """Start to watch the calling thread, which must be the hub's."""
        look = _look_at(get_original("_thread", "get_native_id")())
        sleep = get_original("time", "sleep")
        get_original("_thread", "start_new_thread")(self._watch, (look, sleep))

    def _watch(self, look: Callable[[], bytes | float], sleep: Any) -> None:
        # A garbage collection in this thread would run destructors of the hub's objects. So the
        # loop allocates nothing that the collector counts: the bound methods are made once.
        notify, computes = self._notify, self._computes
        self._now = look()
        while True:
            sleep(PERIOD_S)
            self._before = self._now
            self._now = look()
            late_s = monotonic() - self._beat_s
            if PERIOD_S < late_s < self._max_s and without_collection(computes):
                try:
                    without_collection(notify)
                except (OSError, ValueError):  # the worker ends: gunicorn has closed the file
                    return

    def _computes(self) -> bool:
        return _active_s(self._now) - _active_s(self._before) > COMPUTES * PERIOD_S


def _look_at(thread: int) -> Callable[[], bytes | float]:
    """Return a function that reads the activity of *thread*, the caller's, for ``_active_s``."""
    try:
        fd = schedstat.open_of(thread)
    except OSError:  # a kernel without it: the CPU time alone, without the wait for a CPU
        return partial(clock_gettime, pthread_getcpuclockid(get_original("_thread", "get_ident")()))
    return partial(os.pread, fd, schedstat.SIZE, 0)


def _active_s(looked: bytes | float) -> float:
    """Return the seconds for which the thread has used a CPU or waited for one."""
    if isinstance(looked, float):
        return looked
    runs_ns, waits_ns, _ = looked.split()
    return (int(runs_ns) + int(waits_ns)) / 1e9
