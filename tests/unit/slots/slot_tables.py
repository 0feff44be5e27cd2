"""Slot tables on one file, each of which stands for a process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from greenline.slots import Slot, SlotTable
from tests.helpers.clock import Clock

Open = Callable[..., SlotTable]


@contextmanager
def slot_tables(path: Path, clock: Clock) -> Iterator[Open]:
    """Lend what opens slot tables, ``opened(capacity, reserved)``, and close them at the end."""
    made = []

    def opened(capacity: int = 4, reserved: int = 0, **more: int) -> SlotTable:
        one = SlotTable(path, clock=clock, **more)
        made.append(one)
        one.resize(capacity, reserved)
        return one

    try:
        yield opened
    finally:
        for one in made:
            one.close()


def taken(one: SlotTable, count: int = 1, **how: bool) -> list[Slot]:
    """Take *count* slots, all of which must be there."""
    slots = [one.take(**how) for _ in range(count)]
    assert None not in slots
    return [slot for slot in slots if slot]
