"""
Lend Postgres connections, never more than ``max_size`` at once.

1. A slot is reserved before the connect. It is free again when the connect failed, or when the
   backend is gone: a closed connection is seen off in the background.
2. Waiting is first come, first served. A slot or a connection is handed to the one who waited
   longest; one who gave up meanwhile passes on what was handed to it.
3. Between two waits for I/O no other greenlet runs, so the lists need no lock: each method
   changes them in one go and connects, cleans or closes before or after.
4. A connection comes back clean or not at all: idle is kept, in a transaction is rolled back,
   anything else is closed. What a borrower may have set is reset.
5. Nobody but its borrower touches a connection that is lent.

In the manner of psycopg_pool; the slot before the I/O as in SQLAlchemy's QueuePool.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import gevent
import psycopg2
from gevent.event import AsyncResult, Event
from gevent.lock import BoundedSemaphore
from greenlet import greenlet

from greenline import deadline
from greenline.errors import (
    DeadlineExceeded,
    GreenlineError,
    NestedConnection,
    OutcomeUnknown,
    PoolClosed,
    PoolTimeout,
    TooManyWaiting,
)
from greenline.patching import require_hook
from greenline.postgres.cancel import Canceller
from greenline.postgres.clean import clean, is_dead
from greenline.postgres.connection import Connection
from greenline.postgres.errors import evicts, is_lost, translated
from greenline.postgres.leave import leave

# After a restart all want a connection at once: a server that begins is asked by a few at a time.
MAX_CONNECTING = 8
# Lifetimes differ by up to this part, so that connections made together do not end together.
JITTER = 0.1
# What a waiter is handed: a connection, or None for a free slot, the right to connect.
Grant = Connection | None


class ConnectionPool:
    """
    A pool of at most *max_size* connections made by *connect*.

    *timeout_s* bounds the wait for one, besides the request's deadline; at most *max_waiting*
    may wait. A connection is retired after *max_lifetime_s* (less up to a tenth), or when it was
    idle for *max_idle_s* and there are more than *min_size*. *canceller* stops statements that
    nobody waits for any more. Call from greenlets of one thread.

    Raises:
        LatePatching: psycopg2 would block the hub.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        max_size: int,
        min_size: int = 0,
        timeout_s: float | None = None,
        max_waiting: int = 1000,
        max_lifetime_s: float = 3600.0,
        max_idle_s: float = 600.0,
        canceller: Canceller | None = None,
    ) -> None:
        require_hook()
        self._connect = connect
        self._max_size = max_size
        self._min_size = min_size
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._max_lifetime_s = max_lifetime_s
        self._max_idle_s = max_idle_s
        self._canceller = canceller
        self._size = 0  # connections, reserved slots, and those not gone yet
        self._leaving = 0
        self._connecting = BoundedSemaphore(MAX_CONNECTING)
        self._idle: deque[Connection] = deque()  # the longest idle first
        self._waiting: deque[AsyncResult[Grant]] = deque()
        self._holders: set[greenlet] = set()
        self._closed = False
        self._empty = Event()
        self._empty.set()
        self._evicted_s = 0.0  # connections made before this are not to be trusted
        self._keeper: gevent.Greenlet[[], None] | None = None

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<ConnectionPool {stats}>"

    def stats(self) -> dict[str, int]:
        """Return max; size, of which active, idle and leaving; and waiting (greenlets)."""
        return {
            "max": self._max_size,
            "size": self._size,
            "active": self._size - len(self._idle) - self._leaving,
            "idle": len(self._idle),
            "leaving": self._leaving,
            "waiting": len(self._waiting),
        }

    @contextmanager
    def connection(self, *, autocommit: bool = False, reset: bool = True) -> Iterator[Connection]:
        """
        Lend a connection for the length of the block, which is one transaction.

        It is committed at the end and rolled back on an error; with *autocommit* each statement
        stands alone, which saves the two round trips of BEGIN and COMMIT. Afterwards the session
        is reset, one round trip more, unless *reset* is off: for code that only runs statements
        of ours, which leave nothing in it.

        Raises:
            PoolTimeout: none became free in time.
            TooManyWaiting: ``max_waiting`` wait already.
            PoolClosed: the pool is closed.
            NestedConnection: this greenlet holds one of this pool already.
            StoreDown: no connection could be made, or it was lost.
        """
        me = gevent.getcurrent()
        if me in self._holders:
            raise NestedConnection
        conn = self._acquire()
        self._holders.add(me)
        try:
            with translated(on_error=self._judge):
                conn.autocommit = autocommit
                with deadline.spending("postgres"):
                    yield conn
                    if not autocommit:
                        _commit(conn)
        finally:
            self._holders.discard(me)
            self._give_back(conn, reset)

    def resize(self, max_size: int) -> None:
        """Let the pool hold *max_size* connections; too many now are closed as they come back."""
        self._max_size = max_size
        while self._waiting and self._size < max_size:
            self._take_slot()
            self._waiting.popleft().set(None)
        for _ in range(min(self._size - self._leaving - max_size, len(self._idle))):
            self._see_off(self._idle.popleft())

    def check(self) -> None:
        """Look at each idle connection once and see off those that the server has ended."""
        for conn in [conn for conn in self._idle if is_dead(conn)]:
            self._idle.remove(conn)
            self._see_off(conn)

    def evict(self) -> None:
        """Trust no connection that exists now: idle ones go at once, lent ones on their return."""
        self._evicted_s = monotonic()
        while self._idle:
            self._see_off(self._idle.popleft())

    def close(self, timeout_s: float = 0.0) -> bool:
        """
        Refuse further borrowers, send the waiting ones away, close what is idle.

        Wait up to *timeout_s* seconds for the borrowers, and for the backends' ends. Return
        whether nothing is left; what is comes to its end on its return.
        """
        self._closed = True
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            waiter.set_exception(PoolClosed())
        while self._idle:
            self._see_off(self._idle.popleft())
        if self._keeper is not None:
            self._keeper.kill(block=False)
        return self._empty.wait(timeout_s) if timeout_s else self._size == 0

    def _acquire(self) -> Connection:
        if self._closed:
            raise PoolClosed
        while self._idle:
            conn = self._idle.pop()
            if not is_dead(conn):
                return conn
            self._see_off(conn)
        if self._size < self._max_size:
            self._take_slot()
            return self._fill_slot()
        grant = self._wait()
        return self._fill_slot() if grant is None else grant

    def _wait(self) -> Grant:
        if len(self._waiting) >= self._max_waiting:
            raise TooManyWaiting(
                f"{len(self._waiting)} wait for a connection already, as many as may"
            )
        limit_s = deadline.remaining(self._timeout_s)
        waiter: AsyncResult[Grant] = AsyncResult()
        self._waiting.append(waiter)
        started = monotonic()
        try:
            with deadline.spending("queued"):
                waiter.wait(timeout=limit_s)
        except BaseException:
            self._abandon(waiter)
            raise
        if not waiter.ready():
            self._waiting.remove(waiter)
            raise PoolTimeout(f"no connection became free within {monotonic() - started:.1f} s")
        return waiter.get()

    def _abandon(self, waiter: "AsyncResult[Grant]") -> None:
        """Leave the queue; what was handed over in the same moment goes to the next one."""
        if not waiter.ready():
            self._waiting.remove(waiter)
        elif waiter.successful():
            if waiter.value is None:
                self._free_slot()
            else:
                self._pass_on(waiter.value)

    def _take_slot(self) -> None:
        self._size += 1
        self._empty.clear()

    def _free_slot(self) -> None:
        if self._waiting and self._size <= self._max_size:
            self._waiting.popleft().set(None)
            return
        self._size -= 1
        if self._size == 0:
            self._empty.set()

    def _fill_slot(self) -> Connection:
        try:
            with deadline.spending("connecting"), self._connecting:
                conn = self._connect()
        except BaseException:
            self._free_slot()
            raise
        conn.made_s = monotonic()
        conn.expires_s = conn.made_s + self._max_lifetime_s * (1 - JITTER * random.random())  # noqa: S311
        if self._keeper is None:
            self._keeper = gevent.spawn(self._keep)
        return conn

    def _give_back(self, conn: Connection, reset: bool) -> None:
        kept = False
        try:
            kept = clean(conn, reset)
        finally:
            if kept and not self._is_old(conn):
                self._pass_on(conn)
            else:
                self._see_off(conn)

    def _pass_on(self, conn: Connection) -> None:
        if self._closed or self._size - self._leaving > self._max_size:
            self._see_off(conn)
        elif self._waiting:
            self._waiting.popleft().set(conn)
        else:
            conn.idle_since_s = monotonic()
            self._idle.append(conn)

    def _see_off(self, conn: Connection) -> None:
        """Close *conn* off the caller's path; its slot is free when its backend is gone."""
        self._leaving += 1
        gevent.spawn(self._leave, conn)

    def _leave(self, conn: Connection) -> None:
        deadline.forget()
        try:
            leave(conn, self._canceller)
        finally:
            self._leaving -= 1
            self._free_slot()

    def _judge(self, error: psycopg2.Error) -> None:
        """After a failover or a shutdown no other connection is better than this one."""
        if evicts(error):
            self.evict()

    def _is_old(self, conn: Connection) -> bool:
        return conn.made_s < self._evicted_s or monotonic() >= conn.expires_s

    def _keep(self) -> None:
        """Retire one connection at a time, and keep ``min_size`` open."""
        deadline.forget()
        while not self._closed:
            gevent.sleep(max(min(self._max_idle_s, self._max_lifetime_s) / 20, 0.01))
            self.check()
            self._retire_one()
            with suppress(GreenlineError):
                self.fill()

    def _retire_one(self) -> None:
        for conn in self._idle:
            unused = monotonic() - conn.idle_since_s >= self._max_idle_s
            if self._is_old(conn) or (unused and self._size > self._min_size):
                self._idle.remove(conn)
                self._see_off(conn)
                return

    def fill(self) -> None:
        """
        Connect until there are ``min_size`` connections.

        Raises:
            StoreDown: the server cannot be reached.
        """
        while self._size < min(self._min_size, self._max_size) and not self._closed:
            self._take_slot()
            self._pass_on(self._fill_slot())


def _commit(conn: Connection) -> None:
    """Commit; when the answer is lost, nobody knows whether it happened."""
    try:
        conn.commit()
    except psycopg2.Error as error:
        if is_lost(error):
            raise OutcomeUnknown from error
        raise
    except DeadlineExceeded as error:
        raise OutcomeUnknown from error
