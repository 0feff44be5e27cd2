"""
Connect in slots of the host's slot table, and free each slot when its backend has ended.

A slot is acquired before each connect, and free again when the backend has ended, or was never
requested. The slot table decides which process gives a slot to a waiting one, and its ``shares``
which pool of a process.
"""

import logging
from collections import deque
from collections.abc import Callable
from logging import DEBUG
from time import monotonic
from typing import Protocol

import gevent

from greenline.errors import PoolClosed, PoolTimeout
from greenline.postgres.close import close_and_wait
from greenline.postgres.connect import Connect
from greenline.postgres.connection import Connection
from greenline.slots import PoolShares, Slot, SlotTable

# How often a waiting pool renews its request, and tries to acquire a slot.
SLOT_RETRY_S = 0.005
# An idle connection's time until its slot is given to a waiting pool.
SPARE_S = 0.1

log = logging.getLogger(__name__)


class Controller(Protocol):
    """The control connection, as the slots of a pool use it."""

    def renew(self) -> None: ...

    def cancel(self, pid: int) -> bool: ...


class Slots:
    """
    Connect in slots, and close connections in slots.

    ``leaving`` is the number of connections whose backends have not ended yet.

    :param name: the pool's name in log lines, str.
    :param slot_table: the host's slot table; None for any number of slots.
    :param control: cancels the statement of a connection that is closed. Default None: the
        statement continues.
    """

    def __init__(
        self, name: str, slot_table: SlotTable | None, control: Controller | None = None
    ) -> None:
        self.leaving = 0
        self._name = name
        self._slot_table = slot_table
        self._control = control

    def connect(self, slot: Slot | None, connect: Connect) -> Connection:
        """
        Return a new connection in *slot*; if that fails, release the slot.

        :param slot: the slot, which was acquired; None without a slot table.
        :param connect: makes the connection.
        :raises PoolClosed: the slot table was closed meanwhile.
        :raises Error: as *connect*.
        """
        halves: list[Connection] = []
        try:
            self._prepare(slot)
            conn = connect(abandon=halves.append)
        except BaseException as error:
            # Tested before the release: a slot that was released has no file, either.
            is_closed = _is_closed(slot)
            if halves and (halves[0].is_requested or halves[0].duplicate_fd is not None):
                # There may be a backend: the slot is free when it has ended.
                halves[0].slot = slot
                self.close_and_wait(halves[0])
            else:
                self._free(slot)
            if is_closed and isinstance(error, Exception):
                raise PoolClosed from error
            raise
        if _is_closed(slot):
            conn.slot = slot
            self.close_and_wait(conn)
            raise PoolClosed
        if slot is not None:
            # From here on, if this process is killed, another one can ask for the backend by its
            # pid.
            slot.hold(conn.pid)
            conn.slot = slot
        return conn

    def close_and_wait(self, conn: Connection) -> "gevent.Greenlet[..., None]":
        """Close *conn* in the background; its slot is free when its backend has ended."""
        self.leaving += 1
        return gevent.spawn(self._close_and_wait, conn)

    def _prepare(self, slot: Slot | None) -> None:
        """Prepare a connect in *slot*; an error releases the slot."""

    def _close_and_wait(self, conn: Connection) -> None:
        has_ended: bool | None = None
        try:
            self._log("closing backend %d", conn.pid)
            has_ended = close_and_wait(
                conn, None if self._control is None else self._control.cancel
            )
        finally:
            self.leaving -= 1
            slot, conn.slot = conn.slot, None
            self._free(slot, has_ended=bool(has_ended))
            self._log("backend %d has ended" if has_ended else "backend %d may live on", conn.pid)

    def _free(self, slot: Slot | None, *, has_ended: bool = True) -> None:
        """Release a slot in which no backend was requested, or whose backend was closed."""
        # A slot whose table was closed is free already, or an orphan.
        if self._slot_table is None or slot is None or _is_closed(slot):
            return
        if has_ended:
            self._slot_table.give(slot)
        else:
            # An orphan: the reaper frees it when the server shows the backend no more.
            self._slot_table.abandon(slot)

    def _log(self, event: str, *args: object) -> None:
        if log.isEnabledFor(DEBUG):
            log.debug("%s: %s", self._name, event % args)


class PoolSlots(Slots):
    """
    The slots of one pool, which it shares with the other pools of the host.

    ``is_giving`` is true while :meth:`give_spare` runs, and always without a slot table.

    :param name: as for :class:`Slots`.
    :param slot_table: as for :class:`Slots`.
    :param control: as for :class:`Slots`; it reads the budget before each connect as well.
    :param prepare: is called first before each connect. Default: does nothing.
    :param on_free: is called for each slot that was released, also without a slot table. Default:
        does nothing.
    :param grow: is called repeatedly while the pool waits for a slot, until it returns False (no
        slot is needed any more), and once after each close. Default: returns False.
    """

    def __init__(
        self,
        name: str,
        slot_table: SlotTable | None,
        control: Controller | None = None,
        *,
        prepare: Callable[[], object] = bool,
        on_free: Callable[[], object] = bool,
        grow: Callable[[], bool] = bool,
    ) -> None:
        super().__init__(name, slot_table, control)
        self._share = (PoolShares() if slot_table is None else slot_table.shares).join()
        self._prepare_pool = prepare
        self._on_free = on_free
        self._grow = grow
        self.is_waiting = False  # for a slot that another pool has
        self.is_giving = slot_table is None

    def take(self) -> tuple[bool, Slot | None]:
        """
        Return whether a connect may begin, and its slot (None without a slot table); if no slot is
        free, start calling *grow* in the background.
        """
        is_free, slot = self._take()
        if not is_free and not self.is_waiting:
            self.is_waiting = True
            gevent.spawn(self._wait_and_grow)
        return is_free, slot

    def wait(self) -> Slot | None:
        """Return a slot as soon as one is free."""
        slot: Slot | None = None

        def is_needed() -> bool:
            nonlocal slot
            is_free, slot = self._take()
            return not is_free

        self._wait_while(is_needed)
        return slot

    def renew(self) -> None:
        """
        Read the budget again if the control connection was lost.

        :raises Error: as :meth:`greenline.postgres.control.Control.renew`.
        """
        if self._control is not None and self._slot_table is not None:
            self._control.renew()

    def must_go(self, conn: Connection) -> bool:
        """
        Return whether *conn*, just returned, is beyond the budget or for another pool or process.
        """
        if self._slot_table is None or conn.slot is None:
            return False
        # True reserves the slot for a waiter in reserve() or should_give(): the caller must close
        # it then.
        if self._slot_table.is_over(conn.slot) or self._share.reserve():
            return True
        return self._slot_table.should_give(conn.slot)

    def is_wanted(self, conn: Connection) -> bool:
        """Return whether another pool or another process waits for the slot of *conn*."""
        if self._slot_table is None or conn.slot is None:
            return False
        return self._share.is_wanted() or self._slot_table.is_wanted(conn.slot)

    def give_spare(self, idle: deque[Connection]) -> None:
        """
        Give idle connections to waiting pools of the host, in the background, until none is idle.

        :param idle: the pool's idle connections.
        """
        self.is_giving = True
        gevent.spawn(self._give_spare, idle)

    def _give_spare(self, idle: deque[Connection]) -> None:
        # Slept first: a small pool has no idle connection at most moments, and a greenlet for each
        # connection that is returned costs a quarter of a short request.
        gevent.sleep(SPARE_S / 2)
        while idle:
            while (conn := next(filter(self._is_spare, idle), None)) is not None:
                idle.remove(conn)
                self.close_and_wait(conn).join()  # one at a time: _is_spare() may change
            gevent.sleep(SPARE_S / 2)
        self.is_giving = False

    def _is_spare(self, conn: Connection) -> bool:
        """Return whether the idle *conn* is beyond the budget, or for a waiting pool."""
        if self._slot_table is None or conn.slot is None:
            return False
        if self._slot_table.is_over(conn.slot):
            return True
        return monotonic() - conn.idle_since_s >= SPARE_S and self.is_wanted(conn)

    def _take(self) -> tuple[bool, Slot | None]:
        if self._slot_table is None:
            return True, None
        # First between the pools of this process, then between the processes.
        slot = None if self._share.is_anothers() else self._slot_table.take()
        if slot is not None:
            self._share.take()
        return slot is not None, slot

    def _wait_and_grow(self) -> None:
        try:
            self._wait_while(self._grow)
        finally:
            self.is_waiting = False

    def _wait_while(self, is_needed: Callable[[], bool]) -> None:
        """Call *is_needed*, which takes slots, until it returns False."""
        with self._share.wait():
            # The request ends by itself after a tenth of a second, so it is renewed as long as it
            # is needed.
            while is_needed() and self._slot_table is not None:
                self._slot_table.request()
                gevent.sleep(SLOT_RETRY_S)

    def _prepare(self, slot: Slot | None) -> None:
        self._prepare_pool()
        # A restarted server may allow less: the budget is read before anything is connected.
        self.renew()
        if self._slot_table is not None and slot is not None and self._slot_table.is_over(slot):
            raise PoolTimeout("the host has fewer connections by now")

    def _close_and_wait(self, conn: Connection) -> None:
        try:
            super()._close_and_wait(conn)
        finally:
            self._grow()

    def _free(self, slot: Slot | None, *, has_ended: bool = True) -> None:
        try:
            super()._free(slot, has_ended=has_ended)
        finally:
            if slot is not None:
                self._share.give()
            self._on_free()


def _is_closed(slot: Slot | None) -> bool:
    """Return whether the slot table of *slot*, which was not released, is closed: a child's is."""
    return slot is not None and (slot.file is None or slot.file.locks.closed)
