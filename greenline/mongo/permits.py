"""
Count a worker's connections to MongoDB against its host's limit.

A permit is a slot of the :class:`SlotTable`: one connection to each server of the deployment, of
the pool, the monitors or the readiness check. It is given back when its socket is closed.
"""

from math import inf
from time import monotonic

from greenline.slots import Slot, SlotTable

SETTLED_S = 1.0


class Permits:
    """
    Hold the permits of this worker.

    :param slot_table: the host's :class:`SlotTable`; None: permits are unlimited.
    """

    def __init__(self, slot_table: SlotTable | None) -> None:
        self._slot_table = slot_table
        self._slots: list[Slot] = []

    def __repr__(self) -> str:
        return f"<Permits held={self.held}>"

    @property
    def held(self) -> int:
        """The number of permits that this worker holds."""
        return len(self._slots)

    @property
    def are_counted(self) -> bool:
        """Whether the permits are shared with other processes."""
        return self._slot_table is not None

    def take(self, number: int) -> bool:
        """Raise the number of held permits to *number* and return True, or take none."""
        if self._slot_table is None:
            return True
        more: list[Slot] = []
        while self.held + len(more) < number:
            slot = self._slot_table.take()
            if slot is None:
                # Two workers that each kept a half of the last permits would block each other.
                for slot in more:
                    self._slot_table.give(slot)
                return False
            more.append(slot)
        self._slots += more
        return True

    def use_published(self) -> None:
        """Use the capacity that another worker has read from the server, if it is larger."""
        # A new worker knows only the small initial capacity. While other workers hold all of that,
        # it cannot connect to ask the server.
        slot_table = self._slot_table
        if slot_table is not None and slot_table.capacity < slot_table.published:
            slot_table.resize(slot_table.published, slot_table.reserved)

    def request(self) -> None:
        """Record for a tenth of a second that this worker waits for permits."""
        if self._slot_table is not None:
            self._slot_table.request()

    def fewest_waiting(self) -> float:
        """Return the fewest permits of another process that waits for some; infinite: none does."""
        return inf if self._slot_table is None else self._slot_table.fewest_waiting()

    def should_give(self) -> bool:
        """
        Return whether a permit is for another process that waits and holds fewer; give it at once.
        """
        slot = next((slot for slot in self._slots if not slot.is_kept), None)
        return (
            self._slot_table is not None and slot is not None and self._slot_table.should_give(slot)
        )

    def keep(self, number: int) -> None:
        """Give back all permits but *number*."""
        # Shared slots first, from the end of the list: other processes cannot use a reserved one.
        self._slots.sort(key=lambda slot: not slot.is_kept)
        while self.held > number:
            slot = self._slots.pop()
            # A slot has no file after the slot table was closed.
            if self._slot_table is not None and slot.file is not None:
                self._slot_table.give(slot)

    def settle(self) -> None:
        """Free the permits of killed workers; call it about once a second."""
        if self._slot_table is None:
            return
        for orphan in self._slot_table.orphans():
            # The sockets ended with the worker; the delay is for the server to notice it.
            if orphan.since_s is not None and monotonic() - orphan.since_s >= SETTLED_S:
                self._slot_table.give(orphan)
