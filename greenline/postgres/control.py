"""
Hold one connection a worker besides its pools, for questions that must work when those are
exhausted: readiness, and the cancel of statements.

It is made when first needed, and again after it broke or a question was interrupted.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import gevent
from psycopg2 import Error
from psycopg2.extensions import TRANSACTION_STATUS_ACTIVE, TRANSACTION_STATUS_IDLE

from greenline.errors import (
    ConfigError,
    DeadlineExceeded,
    GreenlineError,
    PoolClosed,
    PoolTimeout,
    StoreDown,
)
from greenline.hub import deadline
from greenline.postgres.clean import is_dead
from greenline.postgres.connect import Connect
from greenline.postgres.connection import Connection
from greenline.postgres.errors import translated
from greenline.postgres.slots import Slots
from greenline.slots import Slot, SlotTable

ON_CONNECT_TIMEOUT_S = 5.0
CANCEL_TIMEOUT_S = 5.0
CONTROL_CLOSE_S = 1.0
MAX_READS = 10  # of one look at a connection
ENDING_S = 0.1  # from the server's word that it ends a connection to its end

T = TypeVar("T")


class Control:
    """
    The control connection of a worker.

    :param connect: makes a connection.
    :param slot_table: the host's slot table, in which it holds a slot reserved for control
        connections. Default None: it holds none.
    :param on_connect: is called with each new connection; its errors are raised to the caller.
        Default: does nothing.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        slot_table: SlotTable | None = None,
        on_connect: Callable[[Connection], object] = bool,
    ) -> None:
        self._connect = connect
        self._slot_table = slot_table
        self._slots = Slots("control", slot_table)
        self._on_connect = on_connect
        self._lock = threading.Lock()
        self._conn: Connection | None = None
        self._closed = False
        self._failed: Exception | None = None  # the error of the last connect

    @property
    def failed(self) -> Exception | None:
        """The error of the last connect, None if there was none."""
        return self._failed

    def ask(self, question: Callable[[Connection], T]) -> T:
        """
        Return the result of *question*, called with the connection in autocommit mode.

        :raises StoreDown: no connection could be made, or it broke.
        :raises PoolTimeout: there is no slot for it now.
        :raises PoolClosed: it is closed.
        """
        # One question at a time: two greenlets may not use one connection.
        with self._lock:
            return self._ask(question)

    def renew(self) -> None:
        """
        Connect, unless there is a live connection whose slot is within the capacity.

        :raises Error: as :meth:`ask`.
        """
        if self._conn is not None and not _has_ended(self._conn) and not self._is_over():
            return
        failed = self._failed
        with self._lock:
            # Another greenlet's connect failed while this one waited for the lock: a second attempt
            # would only make it wait as long again.
            if self._failed is not None and self._failed is not failed:
                raise self._failed
            self._ask(bool)

    def cancel(self, pid: int) -> bool:
        """Return whether the cancel of the backend *pid* was sent; not if the backend has ended."""
        try:
            # Over the control connection, because psycopg2's own cancel() blocks the whole worker.
            with deadline.limit(CANCEL_TIMEOUT_S):
                return self.ask(partial(_cancel, pid))
        except GreenlineError:
            return False

    def close(self) -> None:
        """
        Close the connection, after the question in progress; a long one closes it when it ends.
        """
        self._closed = True
        if self._lock.acquire(timeout=CONTROL_CLOSE_S):
            if self._conn is not None:
                self._drop(self._conn).join()
            self._lock.release()

    def _ask(self, question: Callable[[Connection], T]) -> T:
        if self._closed:
            raise PoolClosed
        try:
            try:
                conn = self._open()
            except DeadlineExceeded:  # the caller's: a greenlet with more time tries by itself
                raise
            except Exception as error:
                self._failed = error
                raise
            self._failed = None
            with translated():
                return question(conn)
        finally:
            # After an interrupted question an answer may still be on its way, which the next one
            # would read.
            if self._conn is not None and (self._closed or not _is_idle(self._conn)):
                self._drop(self._conn)

    def _open(self) -> Connection:
        if self._conn is not None and _has_ended(self._conn):
            self._drop(
                self._conn
            ).join()  # ended by the server while idle: the next one needs its slot
        slot = self._better_slot()
        if slot is not None and self._conn is not None:
            self._drop(self._conn)
        if self._conn is None:
            # Assigned below: before on_connect, renew() would take it for one that has read the
            # budget.
            conn = self._slots.connect(slot or self._take(), self._connect)
            try:
                conn.autocommit = True
                self._begin(conn)
            except ConfigError as error:
                # A budget that no longer fits is not an error of the caller's settings.
                self._slots.close_and_wait(conn)
                raise StoreDown(f"Postgres: {error}") from error
            except BaseException:
                self._slots.close_and_wait(conn)
                raise
            self._conn = conn
        return self._conn

    def _begin(self, conn: Connection) -> None:
        """Call *on_connect* within a limit of its own."""
        # The lock is held: every greenlet that waits for it waits for this, too.
        try:
            with deadline.limit(ON_CONNECT_TIMEOUT_S):
                self._on_connect(conn)
        except DeadlineExceeded as error:
            if deadline.remaining() == 0:
                raise
            message = f"Postgres: no answer within {ON_CONNECT_TIMEOUT_S:.1f} s of asking"
            raise StoreDown(message) from error

    def _better_slot(self) -> Slot | None:
        """Return another slot if the connection's one is beyond the capacity now."""
        return (
            self._slot_table.take(for_control=True)
            if self._slot_table and self._is_over()
            else None
        )

    def _is_over(self) -> bool:
        slot = None if self._conn is None else self._conn.slot
        return self._slot_table is not None and slot is not None and self._slot_table.is_over(slot)

    def _drop(self, conn: Connection) -> "gevent.Greenlet[..., None]":
        self._conn = None
        return self._slots.close_and_wait(conn)

    def _take(self) -> Slot | None:
        if self._slot_table is None:
            return None
        slot = self._slot_table.take(for_control=True)
        if slot is None:
            raise PoolTimeout("the host's other connections leave none for the control connection")
        return slot


def _has_ended(conn: Connection) -> bool:
    """Return whether the server has ended the connection; if it is idle, read what it says."""
    if conn.info.transaction_status == TRANSACTION_STATUS_ACTIVE:
        return False  # another greenlet waits for an answer, and would wait for ever without it
    conn.notices = []
    # Readable is its end, or a message, behind which its end or another one may have come.
    for _ in range(MAX_READS):
        if is_dead(conn):
            try:
                conn.poll()
            except Error:
                return True
        elif conn.notices:
            # The server says that it ends the connection a moment before it closes it. Closed by us
            # before that it would look as if the network was interrupted.
            gevent.sleep(ENDING_S / MAX_READS)
        else:
            return False
    return bool(conn.notices)  # without them messages that do not cease: it is alive


def _is_idle(conn: Connection) -> bool:
    return not conn.closed and conn.info.transaction_status == TRANSACTION_STATUS_IDLE


def _cancel(pid: int, conn: Connection) -> bool:
    with conn.cursor() as cursor:
        cursor.execute("select pg_cancel_backend(%s)", (pid,))
        row = cursor.fetchone()
    return bool(row and row[0])
