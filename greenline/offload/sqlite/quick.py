"""
Run statements without a thread if they take little time.

A hand-over to a thread costs more than a quick statement. So one that was quick in the thread runs
in the caller's greenlet the next time, with a limit. Opening and closing a connection likewise.
"""

from collections.abc import Callable
from datetime import date
from functools import wraps
from resource import RUSAGE_THREAD, getrusage
from time import monotonic, thread_time
from typing import Any

from greenline.offload.sqlite.statement import COMMIT
from greenline.offload.threads import OwnThread

QUICK_S = 0.0005  # CPU time of a quick query, which does not read from the disk either
MIN_QUICK_RUNS = 2  # quick runs in the thread, in a row, before a query runs in the greenlet
SLOW_RUNS = 100  # runs in the thread after a slow one
FEW_RUNS = 10  # after one that may have been slow
MAX_HERE_S = 0.002  # limit of a query in the greenlet
MAX_BLOCK_S = 0.02  # one that could not be ended, and took longer, does not soon run there again
OPERATIONS = 1000  # instructions of sqlite's virtual machine between two checks of the time
MAX_CHANGES = 10  # changed rows of a transaction that is committed in the greenlet
MAX_SIZE = 50_000  # characters or bytes of the values of a change in the greenlet
MAX_COMMITS = 100  # commits in greenlets between two in the thread, which may do a checkpoint
MAX_QUERIES = 1000  # queries in paces, for each database

SMALL = int | float | date | None  # types of values that are always small

# Keys of paces, besides the queries.
CONNECT, CLOSE, END_OF_READS = "connect", "close", "end of reads"
# And before the text of a change: below 0, the number of commits after it due in the thread.
COMMIT_AFTER = "commit after "

# By database and query: the number of quick runs in a row or, below 0, of runs due in the thread.
paces: dict[str, dict[str, int]] = {}


class Guard:
    """End a slow query in a greenlet: the progress handler, which sqlite calls at intervals."""

    # Has no reference to its connection: only the garbage collector could free such a cycle.

    is_here = False  # whether a statement runs in a greenlet
    has_called = False  # whether a statement has called a function that might wait
    was_due = False  # whether a statement in a greenlet was ended for the application's handler
    handler: Callable[[], Any] | None = None  # the application's progress handler
    handler_calls = 1  # calls of the guard for each call of it
    _is_query = False

    def watched(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """
        Return *func* for ``create_function``: calls of it are noted, and not made in a greenlet.

        :param func: a function of the application, which might wait.
        """

        @wraps(func)  # sqlite3 names it where it reports an error
        def call(*args: Any) -> Any:
            self.has_called = True
            # It was not called when the thread ran the statement. A change goes on: of several rows
            # some may be written.
            if self.is_here and self._is_query:
                self.has_tripped = True
                raise InterruptedError
            return func(*args)

        return call

    def begin(self, is_query: bool, may_end: bool) -> None:
        """
        Start the time of a statement.

        :param is_query: whether it only reads, so that it can be ended.
        :param may_end: whether another one can be ended, and begun again in the thread.
        """
        self.has_tripped = self.was_due = False
        self._calls = 0
        self._is_query = is_query
        self._may_end = is_query or may_end
        self._began_s = monotonic()
        self._before = getrusage(RUSAGE_THREAD)

    def __call__(self) -> bool:
        self.has_tripped = self._may_end and self.is_late()
        if self.handler is not None and not self.has_tripped:
            self._calls += 1
            if self._calls % self.handler_calls == 0:
                # It might wait, so it is called in the thread, where the statement begins again. A
                # change that cannot be ended calls it here, as it does the functions.
                if not self._may_end:
                    return bool(self.handler())
                self.has_tripped = self.was_due = True
        return self.has_tripped

    def is_late(self, limit_s: float = MAX_HERE_S) -> bool:
        """
        Return whether the query takes too long; False if only the machine was busy.

        :param limit_s: how long it may take, in seconds. Default ``MAX_HERE_S``.
        """
        if monotonic() - self._began_s < limit_s:
            return False
        before, now = self._before, getrusage(RUSAGE_THREAD)
        used_s = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
        # Not the context switches: the hub waits for the interpreter's lock as well.
        return used_s > limit_s or now.ru_inblock != before.ru_inblock


def is_large(parameters: Any) -> bool:
    """Return whether the values of a statement are large, or cannot be looked at."""
    if type(parameters) is dict:
        parameters = parameters.values()
    elif type(parameters) not in (tuple, list):
        return True
    size = 0
    for value in parameters:
        if isinstance(value, str | bytes | bytearray | memoryview):
            size += len(value)
        elif not isinstance(value, SMALL):  # an adapter may make a large value of it
            return True
    return size > MAX_SIZE


def run_or_hand_over(
    own: OwnThread, database: str, what: str, func: Callable[..., Any], *args: Any
) -> None:
    """
    Open or close a connection, in the caller's greenlet if that was quick before.

    :param own: the thread of the connection.
    :param database: the name of the database, str.
    :param what: :data:`CONNECT` or :data:`CLOSE`.
    :param func: the function to call.
    :param args: its arguments.
    """
    known = paces.setdefault(database, {})
    if known.get(what, 0) < MIN_QUICK_RUNS or not own.is_idle:
        own.call(measured, known, what, func, *args, is_cleanup=what == CLOSE)
        return
    before, started_s = getrusage(RUSAGE_THREAD), monotonic()
    func(*args)
    took_s = monotonic() - started_s
    if took_s > MAX_HERE_S:
        now = getrusage(RUSAGE_THREAD)
        used_s = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
        # Otherwise only the machine was busy: it waited for nothing but a processor. A short wait
        # may have been for the interpreter's lock.
        if used_s > MAX_HERE_S or now.ru_nvcsw != before.ru_nvcsw:
            known[what] = -SLOW_RUNS if took_s > MAX_BLOCK_S else -FEW_RUNS


def measured(known: dict[str, int], what: str, func: Callable[..., Any], *args: Any) -> None:
    """
    Call *func*, in a thread, and note whether it was quick.

    :param known: the entry of the database in :data:`paces`.
    :param what: the key of the call: a query, :data:`CONNECT` or :data:`CLOSE`.
    :param func: the function to call.
    :param args: its arguments.
    """
    # CPU time, because a busy machine says nothing of the query. ru_inblock: reads from the disk.
    read = getrusage(RUSAGE_THREAD).ru_inblock
    started_s = thread_time()
    func(*args)
    is_quick = thread_time() - started_s < QUICK_S
    if not is_quick or getrusage(RUSAGE_THREAD).ru_inblock != read:
        # Not for long because of one run: the first one reads the schema, a commit may have done
        # a checkpoint, and the machine may have been busy.
        is_known = known.get(what, 1) <= 0 and what != COMMIT.key
        known[what] = -SLOW_RUNS if is_known else min(known.get(what, 0), 0)
    elif len(known) < MAX_QUERIES:
        known[what] = known.get(what, 0) + 1
    else:
        # Bounds the memory: queries with values in their text are rarely repeated.
        known.clear()
