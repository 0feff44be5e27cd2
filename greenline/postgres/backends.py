"""
Connect the backends of one pool, close them, and count them.

The size is reserved before the connect, as in SQLAlchemy's QueuePool, and free again when the
connect failed or the backend has ended.
"""

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from logging import DEBUG
from time import monotonic

import gevent
from gevent.event import Event
from greenlet import greenlet

from greenline.errors import GreenlineError, PoolClosed, PoolTimeout
from greenline.postgres.connect import Connect
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.queue import Queue
from greenline.postgres.slots import SLOT_RETRY_S, PoolSlots
from greenline.slots import Slot, SlotTable
from greenline.telemetry.pool_statistics import PoolStatistics

# After a restart of the server all workers connect: each one makes a few connections at a time, and
# an attempt after a failed one waits for a random time.
MAX_PARALLEL_CONNECTS = 8
RETRY_JITTER_S = 0.05

log = logging.getLogger(__name__)


class Backends:
    """
    The backends of one pool, at most ``max_size``.

    :param connect: makes a connection.
    :param queue: the greenlets that wait for a connection.
    :param admit: is called with each new connection.
    :param name: the pool's name in log lines, str.
    :param statistics: the pool's counts.
    :param max_size: the largest number of backends, int.
    :param control: as for the pool.
    :param slot_table: as for the pool.
    """

    def __init__(
        self,
        connect: Connect,
        queue: Queue,
        admit: Callable[[Connection], object],
        *,
        name: str,
        statistics: PoolStatistics,
        max_size: int,
        control: Control | None,
        slot_table: SlotTable | None,
    ) -> None:
        self.max_size = max_size
        self.size = 0  # connections, reservations, and closed ones whose backend has not ended
        self.connecting = 0
        self.slots = PoolSlots(
            name,
            slot_table,
            control,
            prepare=self._prepare,
            on_free=self._free,
            grow=self.grow,
        )
        self._connect = connect
        self._queue = queue
        self._admit = admit
        self._name = name
        self._statistics = statistics
        self._is_away = False  # the last connect failed
        self._is_stopped = False
        self._connectors: set[greenlet] = set()
        self._empty = Event()
        self._empty.set()

    def __repr__(self) -> str:
        leaving = self.slots.leaving
        return f"<Backends size={self.size} leaving={leaving} connecting={self.connecting}>"

    def queued(self) -> int:
        """Return the number of waiting greenlets for which no connect is in progress."""
        return max(len(self._queue) - self.connecting, 0)

    def grow(self) -> bool:
        """
        Begin a connect for each waiting greenlet, within ``max_size``, a few at a time.

        :returns: True if the pool must wait for a slot that the host's other connections hold.
        """
        # A greenlet does not connect for itself: one that gives up or is killed leaves no half-made
        # connection, and the connection that it asked for serves the next one in the queue.
        while (
            self.connecting < min(len(self._queue), MAX_PARALLEL_CONNECTS)
            and self.size < self.max_size
        ):
            is_free, slot = self.slots.take()
            if not is_free:
                return True
            # Reserved before the I/O, so that calls during a connect never exceed max_size.
            self._reserve()
            gevent.spawn(self._connect_for_the_first, slot)
        return False

    def resize(self, max_size: int) -> int:
        """
        Set the largest number of backends; return how many have to be closed, 0 or less for none.
        """
        self.max_size = max_size
        self.grow()
        return self.size - self.slots.leaving - max_size

    def fill(self, min_size: int) -> None:
        """
        Connect until there are *min_size*.

        :raises StoreDown: the server cannot be reached.
        """
        while self.size < min(min_size, self.max_size) and not self._is_stopped:
            is_free, slot = self.slots.take()
            if not is_free:
                return
            self._reserve()
            try:
                self._admit_and_log(self._fill(slot))
            finally:
                self.grow()

    def stop(self) -> None:
        """Begin no further connect, and kill those in progress."""
        self._is_stopped = True
        for connector in self._connectors:
            gevent.kill(connector)

    def wait_until_gone(self, timeout_s: float) -> bool:
        """Return whether all backends have ended within *timeout_s* seconds."""
        return bool(self._empty.wait(timeout_s))

    def _connect_for_the_first(self, slot: Slot | None) -> None:
        # The greenlet adds itself, so that stop() kills none that has not started: that one would
        # never undo its reservation.
        self._connectors.add(gevent.getcurrent())
        begun_s = monotonic()
        try:
            conn = self._fill(slot)
        except PoolTimeout:
            # The control connection found no slot, or there are fewer slots than before: the
            # waiting greenlets continue to wait.
            self._make_room()
        except Exception as error:
            # The first waiter may have joined after an earlier one was served or gave up. For it
            # grow() begins an attempt of its own.
            self._queue.fail(error, begun_s)
        else:
            self._admit_and_log(conn)
        finally:
            self._connectors.discard(gevent.getcurrent())
        self.grow()

    def _make_room(self) -> None:
        """Let the control connection have the slot that was just released, if it has none."""
        with suppress(GreenlineError):
            self.slots.renew()
        gevent.sleep(SLOT_RETRY_S)

    def _reserve(self) -> None:
        self.size += 1
        self.connecting += 1
        self._empty.clear()

    def _fill(self, slot: Slot | None) -> Connection:
        """Connect with the reservation that was made, in *slot*."""
        begun_s = monotonic()
        try:
            conn = self.slots.connect(slot, self._connect_one)
        except BaseException:
            self._is_away = True
            raise
        finally:
            self.connecting -= 1
        self._is_away = False
        conn.made_s = begun_s  # not the end: an eviction during the connect applies to it as well
        return conn

    def _admit_and_log(self, conn: Connection) -> None:
        self._admit(conn)
        # A log handler may switch greenlets: before this, stop() would lose the connection.
        self._say("connected backend %d", conn.pid)

    def _connect_one(self, *, abandon: Callable[[Connection], None]) -> Connection:
        # Here and not at the reservation: a log handler may switch greenlets, and there no other
        # one may run until the connect has begun. An error here undoes the reservation.
        self._say("connecting")
        with self._statistics.connecting():
            return self._connect(abandon=abandon)

    def _prepare(self) -> None:
        if self._is_stopped:
            raise PoolClosed
        if self._is_away:
            gevent.sleep(random.uniform(0, RETRY_JITTER_S))  # noqa: S311

    def _free(self) -> None:
        self.size -= 1
        if self.size == 0:
            self._empty.set()

    def _say(self, event: str, *args: object) -> None:
        if log.isEnabledFor(DEBUG):
            size = self.size, self.max_size
            log.debug("%s: %s; size %d of %d", self._name, event % args, *size)
