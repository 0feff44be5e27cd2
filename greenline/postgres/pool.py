"""
Lend Postgres connections, never more than ``max_size`` at once.

1. A slot is reserved before the connect and given back when the connect fails.
2. Waiting is first come, first served. A slot or a connection is handed to the one who waited
   longest; one who gave up meanwhile passes on what was handed to it.
3. Between two waits for I/O no other greenlet runs, so the lists need no lock: each method
   changes them in one go and connects, rolls back or closes before or after.
4. A connection comes back idle, or is rolled back, or is closed when its state is unknown.

In the manner of psycopg_pool; the slot before the I/O as in SQLAlchemy's QueuePool.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from select import POLLIN
from time import monotonic

import psycopg2
from gevent.event import AsyncResult
from gevent.monkey import get_original
from psycopg2.extensions import (
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_INERROR,
    TRANSACTION_STATUS_INTRANS,
)
from psycopg2.extensions import connection as Connection

from greenline import deadline
from greenline.errors import PoolClosed, PoolTimeout, TooManyWaiting
from greenline.patching import require_hook
from greenline.postgres.errors import translated

# gevent's own poll would visit the hub; this one only looks.
_poll = get_original("select", "poll")

# What a waiter is handed: a connection, or None for a free slot, the right to connect.
Grant = Connection | None


class ConnectionPool:
    """
    A pool of at most *max_size* connections made by *connect*.

    *timeout_s* bounds the wait for one, besides the request's deadline; at most *max_waiting*
    may wait. Call from greenlets of one thread.

    Raises:
        LatePatching: psycopg2 would block the hub.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        max_size: int,
        timeout_s: float | None = None,
        max_waiting: int = 1000,
    ) -> None:
        require_hook()
        self._connect = connect
        self._max_size = max_size
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._size = 0  # connections and reserved slots
        self._idle: list[Connection] = []
        self._waiting: deque[AsyncResult[Grant]] = deque()
        self._closed = False

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<ConnectionPool {stats}>"

    def stats(self) -> dict[str, int]:
        """Return max, size, active, idle (connections) and waiting (greenlets)."""
        return {
            "max": self._max_size,
            "size": self._size,
            "active": self._size - len(self._idle),
            "idle": len(self._idle),
            "waiting": len(self._waiting),
        }

    @contextmanager
    def connection(self, *, autocommit: bool = False) -> Iterator[Connection]:
        """
        Lend a connection for the length of the block, which is one transaction.

        It is committed at the end and rolled back on an error; with *autocommit* each statement
        stands alone, which saves the two round trips of BEGIN and COMMIT.

        Raises:
            PoolTimeout: none became free in time.
            TooManyWaiting: ``max_waiting`` wait already.
            PoolClosed: the pool is closed.
            StoreDown: no connection could be made, or it was lost.
        """
        conn = self._acquire()
        try:
            with translated():
                conn.autocommit = autocommit
                yield conn
                if not autocommit:
                    conn.commit()
        finally:
            self._give_back(conn)

    def resize(self, max_size: int) -> None:
        """Let the pool hold *max_size* connections; too many now are closed as they come back."""
        self._max_size = max_size
        while self._waiting and self._size < max_size:
            self._size += 1
            self._waiting.popleft().set(None)
        surplus = self._take_idle(self._size - max_size)
        self._size -= len(surplus)
        for conn in surplus:
            conn.close()

    def close(self) -> None:
        """Refuse further borrowers, send the waiting ones away, close what is idle."""
        self._closed = True
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            waiter.set_exception(PoolClosed())
        idle = self._take_idle(len(self._idle))
        self._size -= len(idle)
        for conn in idle:
            conn.close()

    def _acquire(self) -> Connection:
        if self._closed:
            raise PoolClosed
        while self._idle:
            conn = self._idle.pop()
            if not _is_dead(conn):
                return conn
            conn.close()
            self._size -= 1
        if self._size < self._max_size:
            self._size += 1
            return self._fill_slot()
        grant = self._wait()
        return self._fill_slot() if grant is None else grant

    def _wait(self) -> Grant:
        if len(self._waiting) >= self._max_waiting:
            raise TooManyWaiting(f"{len(self._waiting)} are waiting for a connection already")
        limit_s = deadline.remaining(self._timeout_s)
        waiter: AsyncResult[Grant] = AsyncResult()
        self._waiting.append(waiter)
        started = monotonic()
        try:
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

    def _fill_slot(self) -> Connection:
        try:
            return self._connect()
        except BaseException:
            self._free_slot()
            raise

    def _give_back(self, conn: Connection) -> None:
        clean = False
        try:
            clean = _clean(conn)
        finally:
            if clean:
                self._pass_on(conn)
            else:
                conn.close()
                self._free_slot()

    def _pass_on(self, conn: Connection) -> None:
        if self._closed or self._size > self._max_size:
            conn.close()
            self._free_slot()
        elif self._waiting:
            self._waiting.popleft().set(conn)
        else:
            self._idle.append(conn)

    def _free_slot(self) -> None:
        if self._waiting and self._size <= self._max_size:
            self._waiting.popleft().set(None)
        else:
            self._size -= 1

    def _take_idle(self, count: int) -> list[Connection]:
        """Remove and return up to *count* idle connections, the longest idle first."""
        count = max(count, 0)
        taken, self._idle = self._idle[:count], self._idle[count:]
        return taken


def _clean(conn: Connection) -> bool:
    """Judge a returned connection by its transaction status; roll back where that cleans it."""
    if conn.closed:
        return False
    status = conn.info.transaction_status
    if status in (TRANSACTION_STATUS_INTRANS, TRANSACTION_STATUS_INERROR):
        try:
            conn.rollback()
        except psycopg2.Error:
            return False
        status = conn.info.transaction_status
    return status == TRANSACTION_STATUS_IDLE


def _is_dead(conn: Connection) -> bool:
    """An idle server says nothing: something to read is its end, or its last words."""
    if conn.closed:
        return True
    poll = _poll()
    poll.register(conn.fileno(), POLLIN)
    return bool(poll.poll(0))
