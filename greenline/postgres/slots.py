"""
A pool's places among the connections of the host: one is taken before each connect.

1. A place is free again when the backend is gone, or was never asked for.
2. Where no place is free, the pool says every ``SLOT_RETRY_S`` that it waits for one.
3. What the others wait for is given: as it comes back when they have fewer, and when it was idle
   for ``SPARE_S`` in any case. The slot table says which process has to give, and its sharers which
   pool of a process.
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

SLOT_RETRY_S = 0.005
SPARE_S = 0.1


class Slots:
    """
    The slots of one pool, of the host's *slot_table*; without one there are as many as it asks for.

    *grow* is called while there are too few, until it returns false: it needs no more.
    ``is_giving`` tells that nobody needs to begin with :meth:`give_spare`.
    """

    def __init__(self, slot_table: SlotTable | None, grow: Callable[[], bool]) -> None:
        self._slot_table = slot_table
        self._sharer = (Sharers() if slot_table is None else slot_table.sharers).join()
        self._grow = grow
        self.is_waiting = False  # for a slot that another pool has
        self.is_giving = slot_table is None

    def take(self) -> tuple[bool, Slot | None]:
        """Return whether there is a slot, and which; without one *grow* will be called."""
        if self._slot_table is None:
            return True, None
        slot = None if self._sharer.is_anothers() else self._slot_table.take()
        if slot is not None:
            self._sharer.take()
        elif not self.is_waiting:
            self.is_waiting = True
            gevent.spawn(self._wait)
        return slot is not None, slot

    def give(self, slot: Slot | None) -> None:
        """Give back a slot in which no backend was asked for."""
        if self._slot_table is None or slot is None:
            return
        if not _is_closed(slot):
            self._slot_table.give(slot)
        self._sharer.give()

    def is_over(self, slot: Slot | None) -> bool:
        """Return whether there are fewer slots by now, so that nobody may connect in *slot*."""
        return self._slot_table is not None and slot is not None and self._slot_table.is_over(slot)

    def close_and_wait(self, conn: Connection, cancel: Cancel | None) -> None:
        """Close *conn*; its slot is free when its backend is gone, and looked after until then."""
        is_counted = self._slot_table is not None and conn.slot is not None
        try:
            close_and_wait(conn, cancel, self._slot_table)
        finally:
            if is_counted:
                self._sharer.give()

    def must_go(self, conn: Connection) -> bool:
        """Return whether *conn*, which comes back, is beyond the budget or another's turn."""
        if self._slot_table is None or conn.slot is None:
            return False
        if self._slot_table.is_over(conn.slot) or self._sharer.promise():
            return True
        return self._slot_table.should_give(conn.slot)

    def give_spare(self, idle: deque[Connection], close_and_wait: CloseAndWait) -> None:
        """Give the host's other pools what lies *idle*, in the background, as long as any does."""
        self.is_giving = True
        gevent.spawn(self._give_spare, idle, close_and_wait)

    def _give_spare(self, idle: deque[Connection], close_and_wait: CloseAndWait) -> None:
        while idle:
            gevent.sleep(SPARE_S / 2)
            while (conn := next(filter(self._is_spare, idle), None)) is not None:
                idle.remove(conn)
                close_and_wait(conn).join()  # one at a time: then it may be the last
        self.is_giving = False

    def _is_spare(self, conn: Connection) -> bool:
        """Return whether the idle *conn* is beyond the budget, or of more use to another."""
        if self._slot_table is None or conn.slot is None:
            return False
        if self._slot_table.is_over(conn.slot):
            return True
        is_unused = monotonic() - conn.idle_since_s >= SPARE_S
        return is_unused and (self._sharer.is_wanted() or self._slot_table.is_wanted(conn.slot))

    def _wait(self) -> None:
        try:
            with self._sharer.wait():
                while self._grow() and self._slot_table is not None:
                    self._slot_table.want()
                    gevent.sleep(SLOT_RETRY_S)
        finally:
            self.is_waiting = False


def connect_in(slot: Slot | None, connect: Connect, give_up: GiveUp) -> Connection:
    """
    Return a new connection in *slot*.

    When there is none *give_up* is called, with what was connected half-way, if anything was.

    Raises:
        PoolClosed: the slot table was closed meanwhile.
        what *connect* raises.
    """
    halves: list[Connection] = []
    try:
        conn = connect(abandon=halves.append)
    except BaseException as error:
        is_closed = _is_closed(slot)
        give_up(slot, halves[0] if halves else None)
        if is_closed and isinstance(error, Exception):
            raise PoolClosed from error
        raise
    if _is_closed(slot):
        give_up(slot, conn)
        raise PoolClosed
    if slot is not None:
        slot.hold(conn.pid)
        conn.slot = slot
    return conn


def release_slot(slot_table: SlotTable, slot: Slot | None, half: Connection | None) -> None:
    """Give *slot* back, when *half* of a connection in it is gone."""
    if half is not None:
        half.slot = slot
        gevent.spawn(close_and_wait, half, None, slot_table)
    elif slot is not None and not _is_closed(slot):
        slot_table.give(slot)


def close_and_wait(conn: Connection, cancel: Cancel | None, slot_table: SlotTable | None) -> None:
    """Close *conn*; its slot is free when its backend is gone, and looked after until then."""
    is_disconnected: bool | None = None
    try:
        is_disconnected = leave(conn, cancel)
    finally:
        slot, conn.slot = conn.slot, None
        if slot_table is not None and slot is not None and not _is_closed(slot):
            if is_disconnected:
                slot_table.give(slot)
            else:
                slot_table.abandon(slot)


def _is_closed(slot: Slot | None) -> bool:
    """Return whether the slot table of *slot*, which was not given back, is closed."""
    return slot is not None and slot.file is None
