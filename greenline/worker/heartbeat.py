"""
Tell the master that the worker lives while its hub computes.

gunicorn ends a worker that does not notify it for ``timeout`` seconds. With threads one of them
notifies, so a view may compute for longer. Here the hub notifies, and cannot while a view computes.
So a native thread does it, as long as the hub's thread uses the CPU or waits for it: one that waits
for something else may wait for ever, and is ended. One that computes for ``MAX_TIMEOUTS`` is taken
to be in an endless loop.
"""

import os
from collections.abc import Callable
from functools import partial
from time import clock_gettime, monotonic, pthread_getcpuclockid
from typing import Any

from gevent.monkey import get_original

from greenline.hub.watchdog import without_collection

PERIOD_S = 1.0
COMPUTES = 0.1  # of the period
MAX_TIMEOUTS = 10
SCHEDSTAT_BYTES = 128  # three numbers


class Heartbeat:
    """
    Notify the master from the hub, and while that computes from a native thread.

    :param notify: tells the master that the worker lives.
    :param timeout_s: gunicorn's, in seconds; 0: it ends no worker.
    """

    def __init__(self, notify: Callable[[], object], timeout_s: float) -> None:
        self._notify = notify
        self._max_s = MAX_TIMEOUTS * timeout_s
        self._beat_s = monotonic()
        self._before: bytes | float = 0.0
        self._now: bytes | float = 0.0

    def beat(self) -> None:
        """Notify the master; call it in the hub, in each period at least."""
        self._beat_s = monotonic()
        self._notify()

    def start(self) -> None:
        """Watch the thread that calls this, from now on."""
        look = _look_at(get_original("_thread", "get_native_id")())
        sleep = get_original("time", "sleep")
        get_original("_thread", "start_new_thread")(self._watch, (look, sleep))

    def _watch(self, look: Callable[[], bytes | float], sleep: Any) -> None:
        # Made once: no look may make anything that the garbage collector counts.
        notify, computes = self._notify, self._computes
        self._now = look()
        while True:
            sleep(PERIOD_S)
            self._before = self._now
            self._now = look()
            late_s = monotonic() - self._beat_s
            if PERIOD_S < late_s < self._max_s and without_collection(computes):
                without_collection(notify)

    def _computes(self) -> bool:
        return _active_s(self._now) - _active_s(self._before) > COMPUTES * PERIOD_S


def _look_at(thread: int) -> Callable[[], bytes | float]:
    """Return what reads for how long *thread*, the caller's, was active; see ``_active_s``."""
    try:
        fd = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
    except OSError:  # a kernel without it; the CPU time is all that there is
        return partial(clock_gettime, pthread_getcpuclockid(get_original("_thread", "get_ident")()))
    return partial(os.pread, fd, SCHEDSTAT_BYTES, 0)


def _active_s(looked: bytes | float) -> float:
    """Return for how long the thread has used a CPU or waited for one, in seconds."""
    if isinstance(looked, float):
        return looked
    runs_ns, waits_ns, _ = looked.split()
    return (int(runs_ns) + int(waits_ns)) / 1e9
