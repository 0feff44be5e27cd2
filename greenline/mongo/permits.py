"""
What a worker may have open at MongoDB, of what the host may: taken together, or not at all.

1. A permit is a connection to each of the servers: the pool's, the monitors', readiness's.
2. Two workers that each hold half of what they need would wait for each other: so whoever does not
   get all gives back what it got, at once, and asks again later.
3. A permit goes back when its socket is closed. Those of a killed worker died with it: what it left
   is free ``SETTLED_S`` after it was found, when the server has noticed, too.
"""

from time import monotonic

from greenline.slots import TOLD_CAPACITY, Slot, SlotTable

SETTLED_S = 1.0


class Permits:
    """The permits of this worker in *slot_table*; without one there are as many as it asks for."""

    def __init__(self, slot_table: SlotTable | None) -> None:
        self._slot_table = slot_table
        self._slots: list[Slot] = []

    def __repr__(self) -> str:
        return f"<Permits held={self.held}>"

    @property
    def held(self) -> int:
        """How many this worker has."""
        return len(self._slots)

    @property
    def are_counted(self) -> bool:
        """Whether others may have what this worker asks for."""
        return self._slot_table is not None

    def take(self, number: int) -> bool:
        """Have *number* in all and return true, or take none."""
        if self._slot_table is None:
            return True
        more: list[Slot] = []
        while self.held + len(more) < number:
            slot = self._slot_table.take()
            if slot is None:
                for slot in more:
                    self._slot_table.give(slot)
                return False
            more.append(slot)
        self._slots += more
        return True

    def hear(self) -> None:
        """
        Go by the capacity that another worker was told of, where it is more.

        Who begins cannot ask the server while others hold all of the little that it knows of.
        """
        if (
            self._slot_table is not None
            and self._slot_table.capacity < self._slot_table.spare[TOLD_CAPACITY]
        ):
            self._slot_table.resize(
                self._slot_table.spare[TOLD_CAPACITY], self._slot_table.reserved
            )

    def keep(self, number: int) -> None:
        """Give back all but *number*, last those that nobody else could use."""
        self._slots.sort(key=lambda slot: not slot.is_kept)
        while self.held > number:
            slot = self._slots.pop()
            if self._slot_table is not None and slot.file is not None:  # the slot table is open
                self._slot_table.give(slot)

    def settle(self) -> None:
        """Free what killed workers left; call it about once a second."""
        if self._slot_table is None:
            return
        for orphan in self._slot_table.orphans():
            if orphan.since_s is not None and monotonic() - orphan.since_s >= SETTLED_S:
                self._slot_table.give(orphan)
