"""
Lend Postgres connections, never more than ``max_size`` at once, in the manner of psycopg_pool.

No other greenlet runs between two waits for I/O, so the lists need no lock: each method changes
them without a wait, and connects, resets or closes before or after.
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from logging import DEBUG
from time import monotonic
from types import TracebackType

import gevent
import psycopg2
from gevent.event import Event
from greenlet import greenlet

from greenline.errors import (
    ConnectionLost,
    GreenlineError,
    NestedConnection,
    OutcomeUnknown,
    PoolClosed,
    PoolTimeout,
    StoreDown,
    StoreError,
    TooManyWaiting,
)
from greenline.hub import deadline
from greenline.hub.patching import require_hook
from greenline.postgres.backends import Backends
from greenline.postgres.clean import clean, is_dead
from greenline.postgres.connect import Connect
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.errors import evicts, first_line, is_lost, translate
from greenline.postgres.queue import Queue, Waiter
from greenline.slots import SlotTable
from greenline.telemetry.pool_statistics import PoolStatistics

# Seconds for the greenlets that close() has interrupted.
POOL_CLOSE_S = 1.0
LEAVE_POLL_S = 0.01
# The weight of a new value in an average: about the last 20 count.
SMOOTHING = 0.05
# A waiter gets no connection if, when its turn comes, fewer than this many average checkouts fit
# into its remaining time.
MIN_CHECKOUTS = 2
# Lifetimes are shortened by a random part up to this, so that connections made together do not end
# together.
JITTER = 0.1

log = logging.getLogger(__name__)

_numbers = count(1)  # of the pools without a name


class Checkout:
    """
    The context manager of :meth:`ConnectionPool.connection`, for one use.

    :param pool: the pool.
    :param autocommit: as for :meth:`ConnectionPool.connection`.
    :param reset: as for :meth:`ConnectionPool.connection`.
    :param is_begun: its user begins the transaction by a statement, and commits it, bool. Default
        False.
    """

    def __init__(
        self, pool: "ConnectionPool", autocommit: bool, reset: bool, is_begun: bool = False
    ) -> None:
        # A class, because every request uses one: a generator with contextmanager costs twice as
        # much.
        self._pool = pool
        self._autocommit = autocommit
        self._reset = reset
        self._is_begun = is_begun

    def __enter__(self) -> Connection:
        conn = self._conn = self._pool.checkout()
        try:
            conn.autocommit = self._autocommit or self._is_begun
            # A log handler may switch greenlets, and this one may be killed meanwhile: here _end()
            # returns the connection.
            if log.isEnabledFor(DEBUG):
                self._pool.log_checkout(conn)
        except BaseException as error:
            self._end(error)
            raise
        return conn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None and not (self._autocommit or self._is_begun):
            try:
                self._conn.commit()
            except BaseException as failed:
                self._end(failed)
                raise
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Return the connection to the pool, and raise psycopg2's errors as greenline's."""
        try:
            if isinstance(error, psycopg2.Error):
                raise self._judged(error) from error
            if isinstance(error, OutcomeUnknown):
                self._pool.invalidate(self._conn)
        finally:
            self._pool.release(self._conn, self._reset)

    def _judged(self, error: psycopg2.Error) -> GreenlineError:
        conn = self._conn
        if isinstance(error, psycopg2.InterfaceError) and not conn.closed:
            return StoreError(f"psycopg2: {first_line(error)}")  # a closed cursor, for instance
        is_over = bool(conn.closed) and is_lost(error)
        # One that was closed on this side (InterfaceError) is no sign that others are lost.
        if evicts(error) or (is_over and not isinstance(error, psycopg2.InterfaceError)):
            self._pool.invalidate(conn)
        if is_over and self._autocommit:  # the last statement may have been committed
            return OutcomeUnknown()
        if is_over:
            return ConnectionLost(f"Postgres: {first_line(error)}")
        return translate(error)


class ConnectionPool:
    """
    A pool of connections. Use it in the greenlets of one thread.

    ``ConnectionPool(partial(connect, url, 5.0), max_size=20)`` with
    :func:`greenline.postgres.connect.connect`.

    :param connect: makes a connection.
    :param name: the pool's name in its log lines, str. Default ``pool-1``, ``pool-2`` and so on.
    :param max_size: the largest number of connections, int; with *slot_table*, as long as no other
        pool of the host waits for one.
    :param min_size: the number of connections to keep open, int. Default 0.
    :param timeout_s: seconds to wait for a connection, float, within the request's deadline.
        Default None: the deadline only.
    :param max_waiting: the largest number of greenlets that wait, int. Default 1000.
    :param max_lifetime_s: seconds after which a connection is retired, less up to a tenth, float.
        Default 3600.
    :param max_idle_s: seconds of idleness after which a connection beyond *min_size* is retired,
        float. Default 600.
    :param control: cancels statements that are still in progress when their connection is closed.
        Default None: such a statement continues on the server, and its slot is free after five
        seconds.
    :param slot_table: the host's slot table, in which each connection holds a slot. Default None.
    :param on_wait: called whenever no idle connection is there, before a greenlet waits for one.
        Default: nothing.
    :raises LatePatching: psycopg2 would block the hub.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        name: str | None = None,
        max_size: int,
        min_size: int = 0,
        timeout_s: float | None = None,
        max_waiting: int = 1000,
        max_lifetime_s: float = 3600.0,
        max_idle_s: float = 600.0,
        control: Control | None = None,
        slot_table: SlotTable | None = None,
        on_wait: Callable[[], object] = bool,
    ) -> None:
        require_hook()
        self.name = name or f"pool-{next(_numbers)}"
        self.statistics = PoolStatistics()
        self._on_wait = on_wait
        self._min_size = min_size
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._max_lifetime_s = max_lifetime_s
        self._max_idle_s = max_idle_s
        self._held_s = 0.0  # the average duration of a checkout
        self._idle: deque[Connection] = deque()  # the longest idle first
        self._queue = Queue(self._pass_on)
        self._backends = Backends(
            connect,
            self._queue,
            self._admit,
            name=self.name,
            statistics=self.statistics,
            max_size=max_size,
            control=control,
            slot_table=slot_table,
        )
        self._slots = self._backends.slots
        self._close_and_wait = self._slots.close_and_wait
        self._holders: set[greenlet] = set()
        self._closing = Event()
        self._evicted_s = 0.0  # connections made before this are closed on return
        self._housekeeper: gevent.Greenlet[[], None] | None = None

    def __repr__(self) -> str:
        return f"<ConnectionPool {_spelled(self.stats())}>"

    def stats(self) -> dict[str, int]:
        """
        Return ``max``; ``size``, of which ``active``, ``idle`` and ``leaving``; and ``waiting``
        greenlets.
        """
        backends, idle = self._backends, len(self._idle)
        return {
            "max": backends.max_size,
            "size": backends.size,
            "active": backends.size - idle - self._slots.leaving,
            "idle": idle,
            "leaving": self._slots.leaving,
            "waiting": backends.queued(),
        }

    def get_stats(self) -> dict[str, int]:
        """
        Return :meth:`stats`, and the counts since the pool was made, or since :meth:`pop_stats`.

        The counts are psycopg_pool's: ``requests_num``, ``requests_queued`` (those that waited),
        ``requests_wait_ms``, ``requests_errors``, ``usage_ms``, ``returns_bad``,
        ``connections_num``, ``connections_ms``, ``connections_errors`` and ``connections_lost``.
        """
        return {**self.stats(), **self.statistics.get()}

    def pop_stats(self) -> dict[str, int]:
        """Return the same as :meth:`get_stats`, and let the counts begin at 0 again."""
        return {**self.stats(), **self.statistics.pop()}

    def connection(self, *, autocommit: bool = False, reset: bool = True) -> Checkout:
        """
        Lend a connection for the length of a ``with`` block, which is one transaction.

        It is committed at the end of the block and rolled back on an error. psycopg2's errors leave
        the block as greenline's.

        :param autocommit: each statement is a transaction of its own, which saves the round trips
            of BEGIN and COMMIT, bool. Default False.
        :param reset: reset the session afterwards, which costs a round trip, bool; not needed for
            statements that change nothing in the session. Default True.
        :returns: a context manager that gives a :class:`Connection`.
        :raises OutcomeUnknown: the connection was lost in the commit, or with *autocommit* at any
            time: the change may have been made.
        :raises PoolTimeout: none became free within ``timeout_s``.
        :raises DeadlineExceeded: none became free within the request's time.
        :raises TooManyWaiting: ``max_waiting`` greenlets wait already.
        :raises PoolClosed: the pool is closed.
        :raises NestedConnection: this greenlet holds a connection of this pool already.
        :raises ClientGone: the request's client disconnected while it waited.
        :raises StoreDown: no connection could be made.
        :raises ConnectionLost: the connection was lost before the commit.
        """
        return Checkout(self, autocommit, reset)

    def checkout(self) -> Connection:
        """Return a connection for the current greenlet; used by :class:`Checkout`."""
        me = gevent.getcurrent()
        if me in self._holders:
            # Greenlets that each hold one connection and wait for a second one would wait for each
            # other.
            raise NestedConnection
        conn = self.acquire()
        self._holders.add(me)
        return conn

    def acquire(self) -> Connection:
        """Return a connection, which any greenlet may give back to :meth:`give_back`."""
        statistics = self.statistics
        statistics.requests_num += 1
        try:
            conn = self._take_idle() or self._wait()
        except BaseException:
            statistics.requests_errors += 1
            raise
        conn.checked_out_s = monotonic()
        return conn

    def acquire_now(self) -> Connection | None:
        """Return an idle or a new connection; None where all that there may be are in use."""
        conn = self._take_idle() or self._connect_now()
        if conn is not None:
            self.statistics.requests_num += 1
            conn.checked_out_s = monotonic()
        return conn

    def log_checkout(self, conn: Connection) -> None:
        """Log that *conn* was checked out; used by :class:`Checkout`."""
        log.debug("%s: checked out backend %d; %s", self.name, conn.pid, _spelled(self.stats()))

    def release(self, conn: Connection, reset: bool) -> None:
        """Take back the connection of the current greenlet; used by :class:`Checkout`."""
        try:
            self.give_back(conn, reset)
        finally:
            self._holders.discard(gevent.getcurrent())

    def give_back(self, conn: Connection, reset: bool) -> None:
        """
        Take back a connection, and keep it if it is clean.

        :param conn: the connection, which no greenlet uses any more.
        :param reset: whether to reset its session, bool.
        """
        now = monotonic()
        held_s = now - conn.checked_out_s
        self._held_s += (held_s - self._held_s) * SMOOTHING
        self.statistics.usage_s += held_s
        kept = False
        try:
            kept = clean(conn, reset)
        finally:
            # Expired connections are closed one at a time: while one is being closed, another
            # expired one is kept and used again.
            is_due = now >= conn.expires_s and not self._slots.leaving
            if kept and not is_due and conn.made_s >= self._evicted_s:
                self._pass_on(conn)
            else:
                self.statistics.returns_bad += not kept
                self._close_and_wait(conn)
            # Last: a log handler may switch greenlets, and the connection must be idle, handed over
            # or being closed by then.
            if log.isEnabledFor(DEBUG):
                state = "clean" if kept else "bad"
                log.debug(
                    "%s: backend %d returned %s after %.3f s", self.name, conn.pid, state, held_s
                )

    def discard(self, conn: Connection) -> None:
        """Close a connection that :meth:`acquire` returned and that must not be used again."""
        self.statistics.returns_bad += 1
        self._close_and_wait(conn)

    def waiting(self) -> int:
        """Return how many greenlets wait for a connection that cannot be made."""
        return self._backends.queued()

    def is_connecting(self) -> bool:
        """Return whether a connect is in progress."""
        return self._backends.connecting > 0

    def waited_s(self) -> float:
        """Return for how many seconds the first greenlet in the queue has waited."""
        return self._queue.waited_s()

    def is_wanted(self, conn: Connection) -> bool:
        """Return whether another pool or another process waits for the slot of *conn*."""
        return self._slots.is_wanted(conn)

    def invalidate(self, conn: Connection) -> None:
        """Evict all connections made before now, unless *conn* was evicted already."""
        # In green mode psycopg2 reports a failover, a shutdown and a loss alike. The loss of a
        # connection that was evicted already is expected, and is no sign that newer ones are lost.
        if not self._is_evicted(conn):
            self.evict()

    def resize(self, max_size: int) -> None:
        """
        Set the largest number of connections; those beyond it are closed when idle or returned.
        """
        for _ in range(min(self._backends.resize(max_size), len(self._idle))):
            self._close_and_wait(self._idle.popleft())

    def fill(self) -> None:
        """
        Connect until there are ``min_size`` connections, and keep as many from now on.

        :raises StoreDown: the server cannot be reached.
        """
        self._start_housekeeper()
        self._backends.fill(self._min_size)

    def check(self) -> None:
        """Close each idle connection that the server has ended."""
        for conn in [conn for conn in self._idle if is_dead(conn)]:
            self._idle.remove(conn)
            self._close_lost(conn)

    def evict(self) -> None:
        """Close all connections that exist now: idle ones at once, lent ones on their return."""
        self._evicted_s = monotonic()
        while self._idle:
            self._close_and_wait(self._idle.popleft())

    def wait_until_left(self, timeout_s: float) -> bool:
        """Return whether all connections that were closed have ended within *timeout_s* seconds."""
        until_s = monotonic() + timeout_s
        while self._slots.leaving and monotonic() < until_s:
            gevent.sleep(LEAVE_POLL_S)
        return not self._slots.leaving

    def close(self, timeout_s: float = 5.0) -> bool:
        """
        Refuse further checkouts, fail all waiting ones, and close idle connections.

        :param timeout_s: seconds to wait for the greenlets that hold a connection, float. Those not
            done then are interrupted with PoolClosed. Default 5.
        :returns: whether every backend has ended.
        """
        self._closing.set()
        self._queue.fail_all(PoolClosed())
        while self._idle:
            self._close_and_wait(self._idle.popleft())
        self._backends.stop()
        if not self._backends.wait_until_gone(timeout_s):
            # A lent connection is closed by its borrower only, which may be waiting inside of
            # psycopg2.
            for holder in self._holders - {gevent.getcurrent()}:
                gevent.kill(holder, PoolClosed())
        return self._backends.wait_until_gone(POOL_CLOSE_S)

    def _take_idle(self) -> Connection | None:
        if self._closing.is_set():
            raise PoolClosed
        while self._idle:
            # The most recently used first, so that the others become idle for long enough to be
            # retired.
            conn = self._idle.pop()
            if not is_dead(conn):
                return conn
            self._close_lost(conn)
        return None

    def _close_lost(self, conn: Connection) -> None:
        self.statistics.connections_lost += 1
        self._close_and_wait(conn)

    def _wait(self) -> Connection:
        self._on_wait()
        backends, queued = self._backends, self._backends.queued()
        places = 0 if self._slots.is_waiting else max(backends.max_size - backends.size, 0)
        # Waiters for which a new connection can be made do not count. Critical section: no greenlet
        # switch between the count and join().
        if queued - places >= self._max_waiting:
            raise TooManyWaiting(
                f"{queued} requests are already waiting for a connection, which is the limit"
            )
        connecting = backends.connecting
        waiter = self._join()
        return self._served(waiter, is_connecting=backends.connecting > connecting)

    def _connect_now(self) -> Connection | None:
        self._on_wait()
        waiter = self._join()
        if self._backends.queued():  # no connect has begun for this one
            self._queue.leave(waiter)
            return None
        return self._served(waiter, is_connecting=True)

    def _join(self) -> Waiter:
        waiter = self._queue.join()
        try:
            self._backends.grow()
        except BaseException:
            self._queue.leave(waiter)  # otherwise the next connection is handed to it and lost
            raise
        return waiter

    def _served(self, waiter: Waiter, *, is_connecting: bool) -> Connection:
        started = monotonic()
        spending = deadline.spending("connecting" if is_connecting else "pool")
        with spending, self.statistics.queued():
            conn = self._queue.wait(waiter, self._timeout_s)
        if conn is not None:
            return conn
        waited = f"within {monotonic() - started:.1f} s"
        if is_connecting:
            raise StoreDown(f"Postgres: no connection could be made {waited}")
        raise PoolTimeout(f"no connection became free {waited}")

    def _admit(self, conn: Connection) -> None:
        """Add a new connection."""
        conn.expires_s = conn.made_s + self._max_lifetime_s * (1 - JITTER * random.random())  # noqa: S311
        self._start_housekeeper()
        self._pass_on(conn)

    def _start_housekeeper(self) -> None:
        if self._housekeeper is None:
            self._housekeeper = gevent.spawn(self._keep)

    def _pass_on(self, conn: Connection) -> None:
        # No greenlet switch in here: a connection is closed, handed to a waiter or idle, never two
        # of them.
        backends = self._backends
        is_beyond = backends.size - self._slots.leaving > backends.max_size
        if self._closing.is_set() or is_beyond or self._slots.must_go(conn):
            self._close_and_wait(conn)
        elif not self._queue.hand(conn, MIN_CHECKOUTS * self._held_s):
            conn.idle_since_s = monotonic()
            self._idle.append(conn)
            if not self._slots.is_giving:
                self._slots.give_spare(self._idle)

    def _is_evicted(self, conn: Connection) -> bool:
        return conn.made_s < self._evicted_s

    def _keep(self) -> None:
        """Retire old and unused connections, one at a time, and keep ``min_size`` open."""
        pause_s = max(min(self._max_idle_s, self._max_lifetime_s) / 20, 0.01)
        while not self._closing.wait(pause_s):
            self.check()
            while (conn := self._find_due()) is not None:
                self._idle.remove(conn)
                self._close_and_wait(conn).join()
            try:
                self.fill()
            except GreenlineError:
                pass  # the next checkout raises it
            except Exception:
                log.exception("filling the pool failed")

    def _find_due(self) -> Connection | None:
        spare = self._backends.size - self._slots.leaving > self._min_size
        now = monotonic()
        for conn in self._idle:
            unused = now - conn.idle_since_s >= self._max_idle_s
            if now >= conn.expires_s or self._is_evicted(conn) or (unused and spare):
                return conn
        return None


def _spelled(stats: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in stats.items())
