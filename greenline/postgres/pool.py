"""
Lend Postgres connections, never more than ``max_size`` at once, in the manner of psycopg_pool.

1. Who finds nothing idle joins the queue; nobody connects for itself: ``backends`` has the rules.
2. Between two waits for I/O no other greenlet runs, so the lists need no lock: each method
   changes them in one go and connects, cleans or closes before or after.
3. A connection comes back clean or not at all: idle is kept, in a transaction is rolled back,
   anything else is closed. What a borrower may have set is reset.
4. Nobody but its borrower touches a connection that is lent.
"""

import logging
import random
from collections import deque
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
from greenline.postgres.queue import Queue
from greenline.slots import SlotTable

# What is left when close() has waited in vain gets this long to end.
POOL_CLOSE_S = 1.0
# Of an average: the last 20 or so count.
SMOOTHING = 0.05
# Whose turn comes when less than so many average loans fit into its time is not served any more.
LOANS = 2
# Lifetimes differ by up to this part, so that connections made together do not end together.
JITTER = 0.1

log = logging.getLogger(__name__)


class Checkout:
    """
    What :meth:`ConnectionPool.connection` returns, to be entered once.

    A class, because every request pays for it: ``contextmanager`` costs twice as much.
    """

    def __init__(self, pool: "ConnectionPool", autocommit: bool, reset: bool) -> None:
        self._pool = pool
        self._autocommit = autocommit
        self._reset = reset

    def __enter__(self) -> Connection:
        conn = self._conn = self._pool.checkout()
        try:
            conn.autocommit = self._autocommit
        except BaseException as error:
            self._end(error)
            raise
        return conn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None and not self._autocommit:
            try:
                self._conn.commit()
            except BaseException as failed:
                self._end(failed)
                raise
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Give the connection back; psycopg2's errors leave the block as ours."""
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
        # A connection that was closed on our side says nothing of the others.
        if evicts(error) or (is_over and not isinstance(error, psycopg2.InterfaceError)):
            self._pool.invalidate(conn)
        if is_over and self._autocommit:  # each statement stood alone: the last one may be done
            return OutcomeUnknown()
        if is_over:
            return ConnectionLost(f"Postgres: {first_line(error)}")
        return translate(error)


class ConnectionPool:
    """
    A pool of at most *max_size* connections made by *connect*.

    *timeout_s* bounds the wait for one, besides the request's deadline; at most *max_waiting*
    may wait. A connection is retired after *max_lifetime_s* (less up to a tenth), or when it was
    idle for *max_idle_s* and there are more than *min_size*. *control* stops statements that
    nobody waits for any more: without one such a statement works on, and its slot is free after
    five seconds all the same. With *slot_table* each connection takes one of the host's slots, and
    *max_size* is what the pool may hold while nobody else on the host wants them. psycopg2's errors
    leave the block as ours. Call from greenlets of one thread.

    ``ConnectionPool(partial(connect, url, 5.0), max_size=20)`` with
    :func:`greenline.postgres.connect.connect`.

    Raises:
        LatePatching: psycopg2 would block the hub.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        max_size: int,
        min_size: int = 0,
        timeout_s: float | None = None,
        max_waiting: int = 1000,
        max_lifetime_s: float = 3600.0,
        max_idle_s: float = 600.0,
        control: Control | None = None,
        slot_table: SlotTable | None = None,
    ) -> None:
        require_hook()
        self._min_size = min_size
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._max_lifetime_s = max_lifetime_s
        self._max_idle_s = max_idle_s
        self._held_s = 0.0  # for how long a connection is lent, on average
        self._idle: deque[Connection] = deque()  # the longest idle first
        self._queue = Queue(self._pass_on)
        self._backends = Backends(
            connect,
            self._queue,
            self._admit,
            max_size=max_size,
            control=control,
            slot_table=slot_table,
        )
        self._slots = self._backends.slots
        self._close_and_wait = self._backends.close_and_wait
        self._holders: set[greenlet] = set()
        self._closing = Event()
        self._evicted_s = 0.0  # connections made before this are not to be trusted
        self._housekeeper: gevent.Greenlet[[], None] | None = None

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<ConnectionPool {stats}>"

    def stats(self) -> dict[str, int]:
        """Return max; size, of which active, idle and leaving; and waiting (greenlets)."""
        backends, idle = self._backends, len(self._idle)
        return {
            "max": backends.max_size,
            "size": backends.size,
            "active": backends.size - idle - backends.leaving,
            "idle": idle,
            "leaving": backends.leaving,
            "waiting": backends.queued(),
        }

    def connection(self, *, autocommit: bool = False, reset: bool = True) -> Checkout:
        """
        Lend a connection for the length of the block, which is one transaction.

        It is committed at the end and rolled back on an error; with *autocommit* each statement
        stands alone, which saves the two round trips of BEGIN and COMMIT. Afterwards the session
        is reset, one round trip more, unless *reset* is off: for code that only runs statements
        of ours, which leave nothing in it.

        Raises:
            OutcomeUnknown: the connection was lost while it committed, or with *autocommit* at
                any time: it may have happened.
            PoolTimeout: none became free within ``timeout_s``.
            DeadlineExceeded: none became free within the request's time.
            TooManyWaiting: ``max_waiting`` wait already.
            PoolClosed: the pool is closed.
            NestedConnection: this greenlet holds one of this pool already.
            ClientGone: the request's client hung up while it waited.
            StoreDown: no connection could be made.
            ConnectionLost: it was lost before anything was committed.
        """
        return Checkout(self, autocommit, reset)

    def checkout(self) -> Connection:
        """Give the current greenlet a connection, for a :class:`Checkout`."""
        me = gevent.getcurrent()
        if me in self._holders:
            raise NestedConnection
        conn = self._acquire()
        self._holders.add(me)
        conn.lent_s = monotonic()
        return conn

    def release(self, conn: Connection, reset: bool) -> None:
        """Take what was lent: keep it when it is clean."""
        self._held_s += (monotonic() - conn.lent_s - self._held_s) * SMOOTHING
        kept = False
        try:
            kept = clean(conn, reset)
        finally:
            self._holders.discard(gevent.getcurrent())
            # One at a time: while another is leaving, an old one is lent once more.
            is_due = self._is_old(conn) and not self._backends.leaving
            if kept and not is_due and not self._is_evicted(conn):
                self._pass_on(conn)
            else:
                self._close_and_wait(conn)

    def invalidate(self, conn: Connection) -> None:
        """
        Evict what was made before now, after a failover, a shutdown or a loss.

        In green mode psycopg2 does not tell one from the other. A loss that was to be expected,
        of a connection that is evicted already, costs no others.
        """
        if not self._is_evicted(conn):
            self.evict()

    def resize(self, max_size: int) -> None:
        """Let the pool hold *max_size* connections; too many now are closed as they come back."""
        for _ in range(min(self._backends.resize(max_size), len(self._idle))):
            self._close_and_wait(self._idle.popleft())

    def fill(self) -> None:
        """
        Connect until there are ``min_size`` connections, and keep so many from now on.

        Raises:
            StoreDown: the server cannot be reached.
        """
        self._start_housekeeper()
        self._backends.fill(self._min_size)

    def check(self) -> None:
        """Look at each idle connection once and see off those that the server has ended."""
        for conn in [conn for conn in self._idle if is_dead(conn)]:
            self._idle.remove(conn)
            self._close_and_wait(conn)

    def evict(self) -> None:
        """Trust no connection that exists now: idle ones go at once, lent ones on their return."""
        self._evicted_s = monotonic()
        while self._idle:
            self._close_and_wait(self._idle.popleft())

    def close(self, timeout_s: float = 5.0) -> bool:
        """
        Refuse further borrowers, send the waiting ones away, close what is idle.

        Wait up to *timeout_s* seconds for the borrowers; who is not done then is interrupted with
        PoolClosed, because nobody may close a connection that another greenlet is using. Return
        whether every backend is gone.
        """
        self._closing.set()
        self._queue.fail_all(PoolClosed())
        while self._idle:
            self._close_and_wait(self._idle.popleft())
        self._backends.stop()
        if not self._backends.wait_until_gone(timeout_s):
            for holder in self._holders - {gevent.getcurrent()}:
                gevent.kill(holder, PoolClosed())
        return self._backends.wait_until_gone(POOL_CLOSE_S)

    def _acquire(self) -> Connection:
        if self._closing.is_set():
            raise PoolClosed
        while self._idle:
            conn = self._idle.pop()
            if not is_dead(conn):
                return conn
            self._close_and_wait(conn)
        return self._wait()

    def _wait(self) -> Connection:
        backends, queued = self._backends, self._backends.queued()
        places = 0 if self._slots.is_waiting else max(backends.max_size - backends.size, 0)
        if queued - places >= self._max_waiting:
            raise TooManyWaiting(f"{queued} wait for a connection already, as many as may")
        started, connecting = monotonic(), backends.connecting
        waiter = self._queue.join()
        backends.grow()
        is_connecting = backends.connecting > connecting
        with deadline.spending("connecting" if is_connecting else "queued"):
            conn = self._queue.wait(waiter, self._timeout_s)
        if conn is not None:
            return conn
        waited = f"within {monotonic() - started:.1f} s"
        if is_connecting:
            raise StoreDown(f"Postgres: no connection could be made {waited}")
        raise PoolTimeout(f"no connection became free {waited}")

    def _admit(self, conn: Connection) -> None:
        """Take a new connection."""
        conn.expires_s = conn.made_s + self._max_lifetime_s * (1 - JITTER * random.random())  # noqa: S311
        self._start_housekeeper()
        self._pass_on(conn)

    def _start_housekeeper(self) -> None:
        if self._housekeeper is None:
            self._housekeeper = gevent.spawn(self._keep)

    def _pass_on(self, conn: Connection) -> None:
        backends = self._backends
        is_beyond = backends.size - backends.leaving > backends.max_size
        if self._closing.is_set() or is_beyond or self._slots.must_go(conn):
            self._close_and_wait(conn)
        elif not self._queue.hand(conn, LOANS * self._held_s):
            conn.idle_since_s = monotonic()
            self._idle.append(conn)
            if not self._slots.is_giving:
                self._slots.give_spare(self._idle, self._close_and_wait)

    def _is_evicted(self, conn: Connection) -> bool:
        return conn.made_s < self._evicted_s

    def _is_old(self, conn: Connection) -> bool:
        return monotonic() >= conn.expires_s

    def _keep(self) -> None:
        """Retire what is too old or unused, one at a time, and keep ``min_size`` open."""
        pause_s = max(min(self._max_idle_s, self._max_lifetime_s) / 20, 0.01)
        while not self._closing.wait(pause_s):
            self.check()
            while (conn := self._find_due()) is not None:
                self._idle.remove(conn)
                self._close_and_wait(conn).join()
            try:
                self.fill()
            except GreenlineError:
                pass  # whoever asks is told
            except Exception:
                log.exception("filling the pool failed")

    def _find_due(self) -> Connection | None:
        spare = self._backends.size - self._backends.leaving > self._min_size
        for conn in self._idle:
            unused = monotonic() - conn.idle_since_s >= self._max_idle_s
            if self._is_old(conn) or self._is_evicted(conn) or (unused and spare):
                return conn
        return None
