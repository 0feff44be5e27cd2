"""
Acquire and release the slots of one pool in the host's slot table.

A slot is acquired before each connect, and free again when the backend has ended, or was never
requested. The slot table decides which process gives a slot to a waiting one, and its ``sharers``
which pool of a process.
"""

from collections import deque
from collections.abc import Callable
from time import monotonic

import gevent

from greenline.errors import PoolClosed
from greenline.postgres.connect import Connect
from greenline.postgres.connection import Connection
from greenline.postgres.leave import leave
from greenline.slots import Sharers, Slot, SlotTable

Cancel = Callable[[int], bool]
CloseAndWait = Callable[[Connection], "gevent.Greenlet[..., None]"]
GiveUp = Callable[[Slot | None, Connection | None], object]

# How often a waiting pool renews its request, and tries to acquire a slot.
SLOT_RETRY_S = 0.005
# An idle connection's time until its slot is given to a waiting pool.
SPARE_S = 0.1


class Slots:
    """
    The slots of one pool.

    ``is_giving`` is true while :meth:`give_spare` runs, or need not be called.

    :param slot_table: the host's slot table; None for any number of slots.
    :param grow: is called while there are too few slots, until it returns False: none is needed.
    """

    def __init__(self, slot_table: SlotTable | None, grow: Callable[[], bool]) -> None:
        self._slot_table = slot_table
        self._sharer = (Sharers() if slot_table is None else slot_table.sharers).join()
        self._grow = grow
        self.is_waiting = False  # for a slot that another pool has
        self.is_giving = slot_table is None

    def take(self) -> tuple[bool, Slot | None]:
        """Return whether a slot is free, and the slot; if none is, *grow* will be called."""
        if self._slot_table is None:
            return True, None
        # First between the pools of this process, then between the processes.
        slot = None if self._sharer.is_anothers() else self._slot_table.take()
        if slot is not None:
            self._sharer.take()
        elif not self.is_waiting:
            self.is_waiting = True
            gevent.spawn(self._wait)
        return slot is not None, slot

    def give(self, slot: Slot | None) -> None:
        """Release a slot in which no backend was requested."""
        if self._slot_table is None or slot is None:
            return
        if not _is_closed(slot):
            self._slot_table.give(slot)
        self._sharer.give()

    def is_over(self, slot: Slot | None) -> bool:
        """Return whether *slot* is beyond the capacity now, so that no connect may begin in it."""
        return self._slot_table is not None and slot is not None and self._slot_table.is_over(slot)

    def close_and_wait(self, conn: Connection, cancel: Cancel | None) -> None:
        """
        Close a connection; its slot is free when the backend has ended.

        :param conn: the connection.
        :param cancel: cancels the statement of a backend, given its process id, or None.
        """
        # Read before the close, which sets the slot of the connection to None.
        is_counted = self._slot_table is not None and conn.slot is not None
        try:
            close_and_wait(conn, cancel, self._slot_table)
        finally:
            if is_counted:
                self._sharer.give()

    def must_go(self, conn: Connection) -> bool:
        """
        Return whether *conn*, just returned, is beyond the budget or for another pool or process.
        """
        if self._slot_table is None or conn.slot is None:
            return False
        # True reserves the slot for a waiter in promise() or should_give(): the caller must close
        # it then.
        if self._slot_table.is_over(conn.slot) or self._sharer.promise():
            return True
        return self._slot_table.should_give(conn.slot)

    def give_spare(self, idle: deque[Connection], close_and_wait: CloseAndWait) -> None:
        """
        Give idle connections to waiting pools of the host, in the background, until none is idle.

        :param idle: the pool's idle connections.
        :param close_and_wait: closes one of them.
        """
        self.is_giving = True
        gevent.spawn(self._give_spare, idle, close_and_wait)

    def _give_spare(self, idle: deque[Connection], close_and_wait: CloseAndWait) -> None:
        while idle:
            gevent.sleep(SPARE_S / 2)
            while (conn := next(filter(self._is_spare, idle), None)) is not None:
                idle.remove(conn)
                close_and_wait(conn).join()  # one at a time: _is_spare() may change
        self.is_giving = False

    def _is_spare(self, conn: Connection) -> bool:
        """Return whether the idle *conn* is beyond the budget, or for a waiting pool."""
        if self._slot_table is None or conn.slot is None:
            return False
        if self._slot_table.is_over(conn.slot):
            return True
        is_unused = monotonic() - conn.idle_since_s >= SPARE_S
        return is_unused and (self._sharer.is_wanted() or self._slot_table.is_wanted(conn.slot))

    def _wait(self) -> None:
        try:
            with self._sharer.wait():
                # The request ends by itself after a tenth of a second, so it is renewed as long as
                # it is needed.
                while self._grow() and self._slot_table is not None:
                    self._slot_table.want()
                    gevent.sleep(SLOT_RETRY_S)
        finally:
            self.is_waiting = False


def connect_in(slot: Slot | None, connect: Connect, give_up: GiveUp) -> Connection:
    """
    Return a new connection in *slot*.

    :param slot: the slot, or None without a slot table.
    :param connect: makes the connection.
    :param give_up: is called if that fails, with the slot, and with the connection that failed
        half-way, or None.
    :raises PoolClosed: the slot table was closed meanwhile.
    :raises Error: as *connect*.
    """
    halves: list[Connection] = []
    try:
        conn = connect(abandon=halves.append)
    except BaseException as error:
        # Tested before give_up(): a slot that it has released has no file, either.
        is_closed = _is_closed(slot)
        give_up(slot, halves[0] if halves else None)
        if is_closed and isinstance(error, Exception):
            raise PoolClosed from error
        raise
    if _is_closed(slot):
        give_up(slot, conn)
        raise PoolClosed
    if slot is not None:
        # From here on, if this process is killed, another one can ask for the backend by its pid.
        slot.hold(conn.pid)
        conn.slot = slot
    return conn


def release_slot(slot_table: SlotTable, slot: Slot | None, half: Connection | None) -> None:
    """
    Release a slot after a failed connect.

    :param slot_table: the host's slot table.
    :param slot: the slot, or None.
    :param half: the connection that failed half-way, whose backend must have ended first, or None.
    """
    if half is not None:
        half.slot = slot
        gevent.spawn(close_and_wait, half, None, slot_table)
    elif slot is not None and not _is_closed(slot):
        slot_table.give(slot)


def close_and_wait(conn: Connection, cancel: Cancel | None, slot_table: SlotTable | None) -> None:
    """
    Close a connection; its slot is free when the backend has ended.

    :param conn: the connection.
    :param cancel: cancels the statement of a backend, given its process id, or None.
    :param slot_table: the host's slot table, or None.
    """
    is_disconnected: bool | None = None
    try:
        is_disconnected = leave(conn, cancel)
    finally:
        slot, conn.slot = conn.slot, None
        if slot_table is not None and slot is not None and not _is_closed(slot):
            if is_disconnected:
                slot_table.give(slot)
            else:
                # An orphan: the reaper frees it when the server shows the backend no more.
                slot_table.abandon(slot)


def _is_closed(slot: Slot | None) -> bool:
    """Return whether the slot table of *slot*, which was not released, is closed."""
    return slot is not None and slot.file is None
