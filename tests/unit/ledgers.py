"""What tests of the ledger share: ledgers on one file, each of which stands for a process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from greenline.slots import Ledger, Slot

Open = Callable[..., Ledger]


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def ledgers(path: Path, clock: Clock) -> Iterator[Open]:
    """Lend what opens ledgers, ``opened(capacity, reserved)``, and close them at the end."""
    made = []

    def opened(capacity: int = 4, reserved: int = 0, **more: int) -> Ledger:
        one = Ledger(path, clock=clock, **more)
        made.append(one)
        one.resize(capacity, reserved)
        return one

    try:
        yield opened
    finally:
        for one in made:
            one.close()


def taken(one: Ledger, count: int = 1, **how: bool) -> list[Slot]:
    """Take *count* slots, all of which must be there."""
    slots = [one.take(**how) for _ in range(count)]
    assert None not in slots
    return [slot for slot in slots if slot]
