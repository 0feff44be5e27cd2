"""
Wait in the hub for the locks of a database, where sqlite itself would wait in C.

A statement that finds the database locked is tried again when a connection of this process has
released a lock, or after a pause. Transactions that begin to write go one after the other; other
processes know nothing of that, so it is only a hint.

A page that is known to hold the write lock for a short time goes before those that are known to
hold it for much longer. Each of these lets so many go before it that its own time is doubled at
most, so that none waits for ever.
"""

import os
from sqlite3 import dbapi2 as sqlite3  # the package itself is not complete yet
from time import monotonic
from typing import Any

from gevent.event import Event
from greenlet import getcurrent

from greenline.hub.deadline import wait_in
from greenline.hub.handlers import Handler, NativeHandler
from greenline.hub.turns import Page, page_of
from greenline.offload.threads import can_wait, native

FIRST_RETRY_S, LAST_RETRY_S = 0.001, 0.05
RETRIES_PER_S = 400  # by all connections that wait for one database

SQLITE_BUSY = 5
SQLITE_BUSY_SNAPSHOT = 517
# Other texts name an unfinished statement of the same connection, for which sqlite does not wait. A
# virtual table is constructed by the first statement of a connection that uses it; FTS5 reads its
# settings then, and returns the code alone.
OF_A_LOCK = "database is locked", "vtable constructor failed"
# Statements that do not turn a read lock into a write lock.
LOCKLESS = {"BEGIN", "SAVEPOINT", "RELEASE", "COMMIT", "END", "PRAGMA", "ATTACH", "DETACH"}

MUCH_LONGER = 4  # times
SMOOTHING = 4  # transactions
MAX_PAGES = 256
OTHERS: Page = ("thread", 0, "")  # the threads that the application has started as it was loaded

# The connections that wait for a lock, by database, in the order in which they are to get it.
waiting: dict[str, list["Retries"]] = {}
# For how many seconds a transaction of a page holds the write lock of a database.
holds: dict[tuple[str, Page], float] = {}


def page() -> Page:
    """Return the page of the caller's request, or what stands for what its thread does."""
    me: Any = getcurrent()
    if type(me) is NativeHandler:
        me = me.handler
    if type(me) is Handler and me.request is not None:
        return page_of(me.request.method, me.request.path)
    task = getattr(me, "task", None)  # of greenline.offload.tasks
    return OTHERS if task is None else task.page


def note_hold(database: str, of_page: Page, held_s: float) -> None:
    """
    Note for how long a transaction has held the write lock.

    :param database: the name of the database, str.
    :param of_page: what :func:`page` has returned where it began.
    :param held_s: seconds, float.
    """
    key = database, of_page
    before_s = holds.get(key)
    if before_s is not None:
        held_s = before_s + (held_s - before_s) / SMOOTHING
    elif len(holds) >= MAX_PAGES:
        holds.clear()
    holds[key] = held_s


def would_wait(error: sqlite3.OperationalError, keyword: str, has_read: bool) -> bool:
    """
    Return whether sqlite itself would have waited for the lock.

    :param error: the error of a statement.
    :param keyword: the first word of the statement, str, in upper case.
    :param has_read: whether the transaction has read something.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF != SQLITE_BUSY or code == SQLITE_BUSY_SNAPSHOT:
        return False
    if not str(error).startswith(OF_A_LOCK):
        return False
    # A reader that begins to write and a writer that waits for readers would wait for each other,
    # so sqlite refuses the reader at once.
    return not has_read or keyword in LOCKLESS


def must_queue(database: str, is_quick: bool) -> bool:
    """
    Return whether a transaction that begins to write must let another one of this process go first.

    :param database: the name of the database, str.
    :param is_quick: whether the lock will be free again before another greenlet runs.
    """
    for each in waiting.get(database, ()):
        if each.is_writer:
            return not (is_quick and each.is_woken)
    return False


class Retries:
    """
    Queue a connection, during a block, for the locks of a database.

    :param database: the name of the database, str.
    :param keyword: the first word of the statement, str, in upper case.
    """

    def __init__(self, database: str, keyword: str) -> None:
        self.commits = keyword == "COMMIT"
        self.is_writer = keyword not in ("SELECT", "COMMIT")
        self._database = database
        self._event = Event()
        self._delay_s = FIRST_RETRY_S
        self._page = page()
        self._given_s = 0.0  # the time of those that have gone before it

    def __enter__(self) -> "Retries":
        queue = waiting.setdefault(self._database, [])
        place = len(queue)
        if self.is_writer:
            if (hold_s := self._hold_s()) is not None:
                place = self._overtake(queue, hold_s)
            # The connections ahead of this one are woken first, so it may try less often.
            self._delay_s = max(FIRST_RETRY_S, place / RETRIES_PER_S)
        queue.insert(place, self)
        return self

    def _hold_s(self) -> float | None:
        """Return for how long it will hold the write lock, None if that is not known yet."""
        return holds.get((self._database, self._page))

    def _overtake(self, queue: list["Retries"], hold_s: float) -> int:
        """Return the place in *queue* behind those that do not let this one go first."""
        for ahead in range(len(queue) - 1, -1, -1):
            each = queue[ahead]
            if not each.is_writer:
                continue  # it waits for something else
            # One that is woken is about to get the lock.
            if (other_s := each._hold_s()) is None or each.is_woken:
                return ahead + 1
            if other_s < max(MUCH_LONGER * hold_s, each._given_s + hold_s):
                return ahead + 1
            each._given_s += hold_s
        return 0

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        queue = waiting[self._database]
        queue.remove(self)
        if not queue:
            del waiting[self._database]
        elif kind is not None and self.is_writer:
            wake(self._database, was_reader=False)  # it may have been woken, and leaves

    def wait(self, until_s: float) -> None:
        """Wait for the release of a lock in this process or the end of a pause, until *until_s*."""
        delay_s = min(self._delay_s, max(until_s - monotonic(), 0.0))
        others = len(waiting[self._database])
        # Not hub.backoff: the longest pause depends on the number of waiters, so that all of them
        # together make no more than RETRIES_PER_S attempts.
        self._delay_s = min(self._delay_s * 2, max(LAST_RETRY_S, others / RETRIES_PER_S))
        if can_wait():
            wait_in(self._event.wait, delay_s)
            self._event.clear()
        else:
            native.sleep(delay_s)

    @property
    def is_woken(self) -> bool:
        """Whether a lock has been released since the last attempt."""
        return self._event.is_set()

    def wake(self) -> None:
        """End the present wait or, between two waits, the next one."""
        self._event.set()


def wake(database: str, was_reader: bool) -> None:
    """
    Wake the connections that may get a lock that was released.

    :param database: the name of the database, str.
    :param was_reader: whether the released lock was a read lock.
    """
    has_writer = False
    for retries in waiting.get(database, ()):
        # A read lock blocks only commits. Of several writers only one can get the lock.
        if retries.commits or not (was_reader or (retries.is_writer and has_writer)):
            retries.wake()
        has_writer |= retries.is_writer


# Those that wait in the parent leave its queue only.
os.register_at_fork(after_in_child=waiting.clear)
