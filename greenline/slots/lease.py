"""
Extend the slot table by a capacity that follows the number of hosts, and by a lease.

One worker of the host is its registrar: the holder of the lock on one byte of the slot table's
file, which the kernel releases when the worker dies. It alone writes the numbers here; the other
workers follow them.
"""

from pathlib import Path
from time import monotonic_ns

from greenline.slots.file import (
    CAPACITY,
    FREE,
    HOST_COUNT,
    HOST_NUMBER,
    LEASED_UNTIL,
    ROWS,
    SEEN,
    SERVER,
    SLOTS,
)
from greenline.slots.slot import Slot
from greenline.slots.table import SlotTable

LEASE_S = 1.0
# A host may resume a lost registration with the capacity that it had: the other hosts count it for
# five seconds after it is gone.
RETURN_S = 4.0
REGISTRAR = SLOTS + ROWS  # the byte to lock, behind those of the slots and the process rows


class LeasedSlotTable(SlotTable):
    """
    This process's part in a slot table with a lease, otherwise as :class:`SlotTable`.

    :param path: the location of the file, Path.
    :raises ConfigError: the file cannot be used; the text names it.
    """

    def __init__(self, path: Path) -> None:
        self._max_reserved = 0
        super().__init__(path)

    @property
    def hosts(self) -> int:
        """The number of hosts, this one included; 0 if not known yet."""
        return self._file.cells[HOST_COUNT]

    @property
    def number(self) -> int:
        """The number of this host; 0 if it has none yet."""
        return self._file.cells[HOST_NUMBER]

    @number.setter
    def number(self, number: int) -> None:
        self._file.cells[HOST_NUMBER] = number

    @property
    def allowed(self) -> int:
        """The capacity that the registrar has set, which this process follows."""
        return self._file.cells[CAPACITY]

    def allow(self, capacity: int) -> None:
        """Set the *capacity* for all workers of the host."""
        self._file.cells[CAPACITY] = capacity
        self._follow()

    def reserve(self, reserved: int) -> None:
        """Reserve the first *reserved* slots, or all if the capacity is smaller."""
        self._max_reserved = reserved
        self.resize(self.allowed, reserved)

    def leads(self) -> bool:
        """Return whether this process is the registrar, or becomes it now."""
        return self._file.lock(REGISTRAR)

    def lease(self, hosts: int, seen_ns: int, server: int) -> None:
        """
        Let the host grow for ``LEASE_S``.

        :param hosts: the number of hosts, int.
        :param seen_ns: the ``time.monotonic_ns()`` before the server was asked, int.
        :param server: the start of the server, as from :func:`greenline.postgres.registry.started`,
            int.
        """
        cells = self._file.cells
        cells[HOST_COUNT], cells[SERVER], cells[SEEN] = hosts, server, seen_ns
        cells[LEASED_UNTIL] = seen_ns + int(LEASE_S * 1e9)

    def end_lease(self) -> None:
        """Stop the host from growing: the registration is lost, or may be."""
        self._file.cells[LEASED_UNTIL] = 0

    def is_leased(self) -> bool:
        """Return whether the lease lasts."""
        # A lease that ends later than LEASE_S from now was written before the last boot.
        return 0 < self._file.cells[LEASED_UNTIL] - monotonic_ns() <= LEASE_S * 1e9

    def may_return(self, server: int) -> bool:
        """Return whether *server* is the one that knew this host less than ``RETURN_S`` ago."""
        cells = self._file.cells
        is_recent = 0 <= monotonic_ns() - cells[SEEN] < RETURN_S * 1e9
        return bool(cells[HOST_NUMBER]) and cells[SERVER] == server and is_recent

    def needed(self, capacity: int) -> int:
        """
        Return how many connections the host may hold with *capacity*, including those yet to be
        closed.
        """
        beyond = self._file.states(capacity, SLOTS)
        return capacity + len(beyond) - beyond.count(FREE)

    def take(self, *, for_control: bool = False) -> Slot | None:
        """
        Acquire a slot as :meth:`SlotTable.take` does, within the lease.

        :param for_control: as there. Default False.
        """
        self._file.require_open()
        self._follow()
        # Without a lease the host keeps its connections but does not grow. Only the registrar
        # connects, with its control connection, in order to register.
        if not self.is_leased():
            return self._enter() if for_control and self.leads() else None
        slot = super().take(for_control=for_control)
        # Checked again after it was acquired: if the host shrank meanwhile, either this process
        # sees the new capacity here, or the registrar sees the slot in needed().
        if slot is not None and self.is_over(slot):
            self.give(slot)
            return None
        return slot

    def is_over(self, slot: Slot) -> bool:
        """
        Return whether *slot* is beyond the capacity now, so that its connection must be closed.
        """
        self._follow()
        return super().is_over(slot)

    def orphans(self) -> list[Slot]:
        """Search for orphans as :meth:`SlotTable.orphans` does, in the registrar only."""
        # The registrar can ask the server even when orphans leave no slot to the other workers.
        if self.leads():
            return super().orphans()
        self.abandon_orphans()
        return []

    def _lock_last_resort(self, _: float) -> bool:
        """Return False: a slot beyond the capacity belongs to another host."""
        return False

    def _follow(self) -> None:
        if self._file.cells[CAPACITY] != self.capacity:
            self.resize(self._file.cells[CAPACITY], self._max_reserved)

    def _enter(self) -> Slot | None:
        """Acquire the lowest free slot, regardless of the capacity."""
        self.resize(SLOTS)
        slot = super().take(for_control=True)
        self.resize(self.allowed, self._max_reserved)
        return slot
