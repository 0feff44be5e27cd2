"""
Queries that take so little time that they need no thread.

A hand-over costs more than a quick query. A query that took little time in the thread is run in the
caller's greenlet the next time, with a limit; opening and closing a connection likewise.
"""

from collections.abc import Callable
from resource import RUSAGE_THREAD, getrusage
from time import monotonic, thread_time
from typing import Any

from greenline.offload.threads import OwnThread

QUICK_S = 0.0005  # of the CPU, without reading from the disk
MIN_QUICK_RUNS = 2  # in the thread, one after the other, before a query runs in the greenlet
SLOW_RUNS = 100  # in the thread, after a slow one
MAX_HERE_S = 0.002  # of a query in the greenlet
OPERATIONS = 1000  # of sqlite's machine between two looks at the time
MAX_QUERIES = 1000  # whose pace is known, for each database

CONNECT, CLOSE = "connect", "close"  # keys of paces, as queries are

# By database and query: how often it was quick, or below 0 how often it is to run in the thread.
paces: dict[str, dict[str, int]] = {}


class Guard:
    """Called by sqlite now and then while a query runs in a greenlet: ends one that is slow."""

    # Without a reference to its connection: only the garbage collector would end such a cycle.

    def begin(self) -> None:
        """Watch from now on."""
        self.has_tripped = False
        self._until_s = monotonic() + MAX_HERE_S
        self._before = getrusage(RUSAGE_THREAD)

    def __call__(self) -> bool:
        self.has_tripped = self.is_late()
        return self.has_tripped

    def is_late(self) -> bool:
        """Return whether the query has taken too long; not if only the machine was busy."""
        if monotonic() < self._until_s:
            return False
        before, now = self._before, getrusage(RUSAGE_THREAD)
        used_s = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
        # A thread that gave the processor away by itself waited for the disk or a lock.
        return used_s > MAX_HERE_S or now.ru_nvcsw != before.ru_nvcsw


def run_or_hand_over(
    own: OwnThread, database: str, what: str, func: Callable[..., Any], *args: Any
) -> None:
    """Open or close a connection: in the caller's greenlet if it was quick before."""
    known = paces.setdefault(database, {})
    if known.get(what, 0) < MIN_QUICK_RUNS or not own.is_idle:
        own.call(measured, known, what, func, *args, is_cleanup=what == CLOSE)
        return
    started_s = monotonic()
    func(*args)
    if monotonic() - started_s > MAX_HERE_S:
        known[what] = -SLOW_RUNS


def measured(known: dict[str, int], what: str, func: Callable[..., Any], *args: Any) -> None:
    """Run in a thread: call *func*, and note whether it was quick."""
    read = getrusage(RUSAGE_THREAD).ru_inblock
    started_s = thread_time()
    func(*args)
    is_quick = thread_time() - started_s < QUICK_S
    if not is_quick or getrusage(RUSAGE_THREAD).ru_inblock != read:
        known[what] = -SLOW_RUNS
    elif len(known) < MAX_QUERIES:
        known[what] = known.get(what, 0) + 1
    else:
        known.clear()
