"""
Wait in the hub for the locks of a database, where sqlite itself would wait in C.

A statement that finds the database locked is tried again when a connection of this process has
released a lock, or after a pause. Transactions that begin to write go one after the other; other
processes know nothing of that, so it is only a hint.

A page that is known to hold the write lock for a short time goes before those that are known to
hold it for much longer. Each of these lets so many go before it that its own time is doubled at
most, so that none waits for ever.

Of transactions that overlap, and write after they have read, only one can succeed: sqlite refuses
the others at once, as no wait would help them. So one that begins with a read after which its page
has written before is taken for a writer: it waits for its turn with the others before it reads.
"""

import os
from sqlite3 import dbapi2 as sqlite3  # the package itself is not complete yet
from time import monotonic
from typing import Any
from weakref import ReferenceType

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
# Of the transactions that begin with a read, how many have to write for it to be queued: one that
# only reads waits in vain, and one that writes without its turn fails, or lets another one fail.
MIN_SHARE = 0.25
# For so long a transaction has its turn that has read and not written yet; where its page is known
# to take longer it has none. No other one can commit meanwhile, except to a write-ahead log.
MAX_READ_S, MAX_LOG_READ_S = 0.5, 0.05
OTHERS: Page = ("thread", 0, "")  # the threads that the application has started as it was loaded

# The connections that wait for a lock, by database, in the order in which they are to get it.
waiting: dict[str, list["Retries"]] = {}
# For how many seconds a transaction of a page holds the write lock of a database.
holds: dict[tuple[str, Page], float] = {}
# The connections whose transactions write, or begin to, or have read and are expected to write, by
# database. Not the connections themselves: who forgets to close one would not find it closed.
writers: dict[str, list[ReferenceType[Any]]] = {}
# How many of a page's transactions that begin with a read write afterwards, 0 to 1, and after how
# many seconds; by the database and the key of the read.
upgrades: dict[tuple[str, Page, str], tuple[float, float]] = {}
with_log: set[str] = set()  # databases that are known to have a write-ahead log


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


def note_upgrade(database: str, of_page: Page, read: str, after_s: float | None) -> None:
    """
    Note whether a transaction that has begun with a read writes.

    :param database: the name of the database, str.
    :param of_page: what :func:`page` returns.
    :param read: the key of its first statement, str.
    :param after_s: how many seconds after that it begins to write, float; None: it has ended.
    """
    key = database, of_page, read
    share, known_s = upgrades.get(key, (0.0, 0.0))
    if after_s is None:
        if share:
            upgrades[key] = share - share / SMOOTHING, known_s
    elif share:
        share += (1 - share) / SMOOTHING
        upgrades[key] = share, known_s + (after_s - known_s) / SMOOTHING
    else:
        if len(upgrades) >= MAX_PAGES:
            upgrades.clear()
        upgrades[key] = 1.0, after_s


def upgrade_share(database: str, of_page: Page, read: str) -> float:
    """
    Return how many of the page's transactions write that begin with a read.

    :param database: the name of the database, str.
    :param of_page: what :func:`page` returns.
    :param read: the key of the statement that reads, str.
    :returns: ``MIN_SHARE`` to 1, or 0 where so few do, or so late, that it is not queued, float.
    """
    share, after_s = upgrades.get((database, of_page, read), (0.0, 0.0))
    return share if share >= MIN_SHARE and after_s < _max_read_s(database) else 0.0


def _max_read_s(database: str) -> float:
    return MAX_LOG_READ_S if database in with_log else MAX_READ_S


def is_of_a_lock(error: BaseException) -> bool:
    """Return whether *error* says that another connection has a lock of the database."""
    if not isinstance(error, sqlite3.OperationalError):
        return False
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == SQLITE_BUSY and str(error).startswith(OF_A_LOCK)


def would_wait(error: BaseException, keyword: str, has_read: bool) -> bool:
    """
    Return whether sqlite itself would have waited for the lock.

    :param error: the error of a statement.
    :param keyword: the first word of the statement, str, in upper case.
    :param has_read: whether the transaction has read something.
    """
    if not is_of_a_lock(error):
        return False
    if getattr(error, "sqlite_errorcode", 0) == SQLITE_BUSY_SNAPSHOT:
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


def is_others_turn(
    database: str, turns: list[ReferenceType[Any]], me: ReferenceType[Any], has_lock: bool
) -> bool:
    """
    Return whether the transaction of another connection of this process is to write first.

    :param database: the name of the database, str.
    :param turns: its entry in :data:`writers`.
    :param me: the connection that asks, as it is there.
    :param has_lock: whether one that has the write lock counts. If not, only one that has read and
        is to write does: it would fail, while sqlite itself refuses what needs a lock that is held.
    """
    since_s = monotonic() - _max_read_s(database)
    for each in turns:
        writer = None if each is me else each()
        # It may be closed, collected as garbage, or ended by an error.
        if writer is None or writer.has_ended():
            continue
        if has_lock if writer.has_write_lock() else writer.turn_s > since_s:
            return True
    return False


class Retries:
    """
    Queue a connection, during a block, for the locks of a database.

    :param database: the name of the database, str.
    :param keyword: the first word of the statement, str, in upper case.
    :param is_writer: whether its transaction writes, though this statement reads. Default False.
    """

    def __init__(self, database: str, keyword: str, is_writer: bool = False) -> None:
        self.commits = keyword == "COMMIT"
        self.is_writer = is_writer or keyword not in ("SELECT", "COMMIT")
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


def _after_fork_in_child() -> None:
    # Those that wait in the parent leave its queue only, and its transactions end there.
    waiting.clear()
    for turns in writers.values():
        turns.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
