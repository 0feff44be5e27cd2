"""
The backends of one pool: how many there are, making them, and seeing them off.

1. A place is reserved before the connect. It is free again when the connect failed, or when the
   backend is gone: a closed connection is seen off in the background.
2. Nobody connects for itself: the pool connects for as many as wait in its queue, a few at a time.
   So a borrower that gives up or is killed never leaves half a connection behind, and what it asked
   for serves the next one.
3. What the server allows now is read before anything is connected.

The place before the I/O as in SQLAlchemy's QueuePool.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import gevent
from gevent.event import Event
from greenlet import greenlet

from greenline.errors import GreenlineError, PoolClosed, PoolTimeout
from greenline.postgres.connect import Connect
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.queue import Queue
from greenline.postgres.slots import SLOT_RETRY_S, Slots, connect_in
from greenline.slots import Slot, SlotTable

# After a restart all want a connection at once: a server that begins is asked by a few at a time,
# and each attempt after a failed one comes at a moment of its own.
MAX_CONNECTING = 8
RETRY_JITTER_S = 0.05


class Backends:
    """
    At most ``max_size`` of them, connected by *connect* for those in *queue*.

    *admit* is called with each new connection. *control* and *slot_table* are as for the pool.
    """

    def __init__(
        self,
        connect: Connect,
        queue: Queue,
        admit: Callable[[Connection], object],
        *,
        max_size: int,
        control: Control | None,
        slot_table: SlotTable | None,
    ) -> None:
        self.max_size = max_size
        self.size = 0  # connections, reserved places, and those not gone yet
        self.leaving = 0
        self.connecting = 0
        self.slots = Slots(slot_table, self.grow)
        self._connect = connect
        self._queue = queue
        self._admit = admit
        self._cancel = None if control is None else control.cancel
        self._renew = control.renew if control is not None and slot_table is not None else None
        self._is_away = False  # the last connect failed
        self._is_stopped = False
        self._connectors: set[greenlet] = set()
        self._empty = Event()
        self._empty.set()

    def __repr__(self) -> str:
        return f"<Backends size={self.size} leaving={self.leaving} connecting={self.connecting}>"

    def queued(self) -> int:
        """Return how many wait and are not being connected for."""
        return max(len(self._queue) - self.connecting, 0)

    def grow(self) -> bool:
        """
        Connect for those who wait, as far as there are places, and a few at a time.

        Return whether the host's other connections leave too few slots.
        """
        while self.connecting < min(len(self._queue), MAX_CONNECTING) and self.size < self.max_size:
            is_free, slot = self.slots.take()
            if not is_free:
                return True
            self._reserve()
            gevent.spawn(self._connect_for_the_first, slot)
        return False

    def resize(self, max_size: int) -> int:
        """Let there be *max_size*, and return how many have to leave, below 0 for none."""
        self.max_size = max_size
        self.grow()
        return self.size - self.leaving - max_size

    def fill(self, min_size: int) -> None:
        """
        Connect until there are *min_size*.

        Raises:
            StoreDown: the server cannot be reached.
        """
        while self.size < min(min_size, self.max_size) and not self._is_stopped:
            is_free, slot = self.slots.take()
            if not is_free:
                return
            self._reserve()
            try:
                self._admit(self._fill(slot))
            finally:
                self.grow()

    def close_and_wait(self, conn: Connection) -> "gevent.Greenlet[..., None]":
        """Close *conn* off the caller's path; its place is free when its backend is gone."""
        self.leaving += 1
        return gevent.spawn(self._leave, conn)

    def stop(self) -> None:
        """Connect no more."""
        self._is_stopped = True
        for connector in self._connectors:
            gevent.kill(connector)

    def wait_until_gone(self, timeout_s: float) -> bool:
        """Return whether all are gone within *timeout_s* seconds."""
        return bool(self._empty.wait(timeout_s))

    def _connect_for_the_first(self, slot: Slot | None) -> None:
        # By itself: one that is killed before it begins would never free its place.
        self._connectors.add(gevent.getcurrent())
        try:
            conn = self._fill(slot)
        except PoolTimeout:
            self._make_room()
        except Exception as error:
            self._queue.fail(error)
        else:
            self._admit(conn)
        finally:
            self._connectors.discard(gevent.getcurrent())
        self.grow()

    def _make_room(self) -> None:
        """Let the control connection have the slot that was just given back, if it has none."""
        with suppress(GreenlineError):
            if self._renew is not None:
                self._renew()
        gevent.sleep(SLOT_RETRY_S)

    def _reserve(self) -> None:
        self.size += 1
        self.connecting += 1
        self._empty.clear()

    def _fill(self, slot: Slot | None) -> Connection:
        """Connect in the place that was reserved, and in *slot*."""

        def open_one(*, abandon: Callable[[Connection], None]) -> Connection:
            self._prepare(slot)
            return self._connect(abandon=abandon)

        begun_s = monotonic()
        try:
            conn = connect_in(slot, open_one, self._give_up)
        except BaseException:
            self._is_away = True
            raise
        finally:
            self.connecting -= 1
        self._is_away = False
        conn.made_s = begun_s  # what happened since then happened to it as well
        return conn

    def _prepare(self, slot: Slot | None) -> None:
        if self._is_stopped:
            raise PoolClosed
        if self._is_away:
            gevent.sleep(random.uniform(0, RETRY_JITTER_S))  # noqa: S311
        if self._renew is not None:
            self._renew()  # a server that was started anew may allow less: that is read first
        if self.slots.is_over(slot):
            raise PoolTimeout("the host has fewer connections by now")

    def _give_up(self, slot: Slot | None, half: Connection | None) -> None:
        if half is None:
            self.slots.give(slot)
            self._free()
        else:
            half.slot = slot
            self.close_and_wait(half)

    def _leave(self, conn: Connection) -> None:
        try:
            self.slots.close_and_wait(conn, self._cancel)
        finally:
            self.leaving -= 1
            self._free()
            self.grow()

    def _free(self) -> None:
        self.size -= 1
        if self.size == 0:
            self._empty.set()
