"""
A host's slot table whose capacity changes with the number of hosts, and whose view of them has an
end.

1. One worker of the host is its registrar: the one that has locked a byte of the slot table's file,
   which the kernel frees when it dies. It alone writes the numbers here; its siblings follow them.
2. A slot is taken only within the lease, ``LEASE_S`` from the moment at which the registrar last
   asked the server who is there. Without one the host does not grow; what it holds it keeps.
3. The registrar alone may connect without a lease, with its control connection, to register. So it
   is the one that looks after orphans: it can ask when they have left no slot to its siblings.
4. A slot is looked at once more after it was taken: either its taker sees that the host shrank
   meanwhile, or the registrar sees the slot.
"""

from pathlib import Path
from time import monotonic_ns

from greenline.slots import Slot, SlotTable
from greenline.slots.file import FREE, SEATS, SLOTS, SPARE

LEASE_S = 1.0
# A registration that was lost may be taken up with what the host had: the others count a host that
# is gone for five seconds more.
RETURN_S = 4.0
REGISTRAR = SLOTS + SEATS  # its byte, behind those of the slots and the seats
# Numbers of the slot table; the one before is TOLD_CAPACITY.
CAPACITY, HOSTS_CELL, NUMBER, SERVER, SEEN, LEASED_UNTIL = range(SPARE + 1, SPARE + 7)


class LeasedSlotTable(SlotTable):
    """
    This process's part in the slot table at *path*, as :class:`SlotTable`.

    Raises:
        ConfigError: the file cannot be used; names it.
    """

    def __init__(self, path: Path) -> None:
        self._most_reserved = 0
        super().__init__(path)

    @property
    def hosts(self) -> int:
        """How many hosts there are, this one among them; 0 is not known yet."""
        return self._file.cells[HOSTS_CELL]

    @property
    def number(self) -> int:
        """The number of this host; 0 is none yet."""
        return self._file.cells[NUMBER]

    @number.setter
    def number(self, number: int) -> None:
        self._file.cells[NUMBER] = number

    @property
    def allowed(self) -> int:
        """The capacity that the registrar has told, which this process follows."""
        return self._file.cells[CAPACITY]

    def allow(self, capacity: int) -> None:
        """Tell all workers of the host that there are *capacity* slots from now on."""
        self._file.cells[CAPACITY] = capacity
        self._follow()

    def reserve(self, reserved: int) -> None:
        """Keep the first *reserved* slots for those who need them, as far as there are so many."""
        self._most_reserved = reserved
        self.resize(self.allowed, reserved)

    def leads(self) -> bool:
        """Return whether this process is the registrar, or becomes it now."""
        return self._file.lock(REGISTRAR)

    def lease(self, hosts: int, seen_ns: int, server: int) -> None:
        """Let the host grow: the *server*, by its start, was asked at *seen_ns* and knows us."""
        cells = self._file.cells
        cells[HOSTS_CELL], cells[SERVER], cells[SEEN] = hosts, server, seen_ns
        cells[LEASED_UNTIL] = seen_ns + int(LEASE_S * 1e9)

    def end_lease(self) -> None:
        """Let the host not grow: the registration is lost, or may be."""
        self._file.cells[LEASED_UNTIL] = 0

    def is_leased(self) -> bool:
        """Return whether the lease lasts; one of before the last boot does not."""
        return 0 < self._file.cells[LEASED_UNTIL] - monotonic_ns() <= LEASE_S * 1e9

    def may_return(self, server: int) -> bool:
        """Return whether *server* is the one that knew this host less than ``RETURN_S`` ago."""
        cells = self._file.cells
        is_recent = 0 <= monotonic_ns() - cells[SEEN] < RETURN_S * 1e9
        return bool(cells[NUMBER]) and cells[SERVER] == server and is_recent

    def needed(self, capacity: int) -> int:
        """Return what the host may come to hold with *capacity*: more, while others leave."""
        beyond = self._file.states(capacity, SLOTS)
        return capacity + len(beyond) - beyond.count(FREE)

    def take(self, *, for_control: bool = False) -> Slot | None:
        """Take a slot as :meth:`SlotTable.take` does, within the lease."""
        self._file.require_open()
        self._follow()
        if not self.is_leased():
            return self._enter() if for_control and self.leads() else None
        slot = super().take(for_control=for_control)
        if slot is not None and self.is_over(slot):
            self.give(slot)
            return None
        return slot

    def is_over(self, slot: Slot) -> bool:
        """Return whether there are fewer slots by now, so that *slot*'s connection has to go."""
        self._follow()
        return super().is_over(slot)

    def orphans(self) -> list[Slot]:
        """Look for orphans as :meth:`SlotTable.orphans` does, if this process is the registrar."""
        if self.leads():
            return super().orphans()
        self.abandon_orphans()
        return []

    def _lock_last_resort(self, _: float) -> bool:
        """There is none: one beside the capacity is another host's, and the registrar can ask."""
        return False

    def _follow(self) -> None:
        if self._file.cells[CAPACITY] != self.capacity:
            self.resize(self._file.cells[CAPACITY], self._most_reserved)

    def _enter(self) -> Slot | None:
        """Take the lowest free slot, whatever was left behind."""
        self.resize(SLOTS)
        slot = super().take(for_control=True)
        self.resize(self.allowed, self._most_reserved)
        return slot
