"""
What a connection slot costs, in microseconds: taken and given, and asked about at each return.

Each slot table is what one process has of the file. One thread, rounds interleaved, medians. Read
it beside a connect to Postgres, which takes some milliseconds, and a request, some hundred us.

    python -m bench.slots
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import NamedTuple

from greenline.slots import Slot, SlotTable, path
from greenline.slots.process_share import REQUEST_S

ROUNDS, TIMES = 15, 400
OTHERS = 4


class Work(NamedTuple):
    """What is measured; *prepare* is not."""

    name: str
    do: Callable[[], object]
    times: int = TIMES
    prepare: Callable[[], object] = lambda: None


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=path("").parent) as folder:
        works = list(_works(Path(folder)))
        spent: dict[str, list[float]] = {work.name: [] for work in works}
        for _ in range(ROUNDS):
            for work in works:
                work.prepare()
                started = perf_counter()
                for _ in range(work.times):
                    work.do()
                spent[work.name].append((perf_counter() - started) / work.times * 1e6)
    for name, each in spent.items():
        print(f"{name:56} {median(each):8.2f} us  (least {min(each):.2f})")


def _works(folder: Path) -> Iterator[Work]:
    for capacity in (100, 1000, 4000):
        mine, *_ = _slot_tables(folder / f"free{capacity}", capacity, 0)
        yield Work(f"take and give, none of {capacity} held", _take_and_give(mine))
        mine, *_ = _slot_tables(folder / f"but-one{capacity}", capacity, capacity - 1)
        yield Work(f"take and give, all of {capacity} but one held", _take_and_give(mine))
        yield Work(f"look for orphans, all of {capacity} but one held", mine.orphans, 20)
        mine, *_ = _slot_tables(folder / f"full{capacity}", capacity, capacity)
        yield Work(f"take, all of {capacity} held", mine.take)
    mine, other, *_ = _slot_tables(folder / "turns", 100, 0)
    slots = [_taken(mine) for _ in range(3)]
    for name, ask in (("should_give", mine.should_give), ("is_wanted", mine.is_wanted)):
        yield Work(f"{name}, no waiter", partial(ask, slots[0]), TIMES, _calm)
    _taken(other), _taken(other)
    yield Work("request", other.request)
    for name, ask in (("should_give", mine.should_give), ("is_wanted", mine.is_wanted)):
        yield Work(
            f"{name}, another of {OTHERS + 1} waits", partial(ask, slots[0]), 100, other.request
        )
    yield Work("open the slot table and close it", lambda: _open(folder / "opened"), 20)


_kept: list[SlotTable] = []  # without its holder a slot is an orphan's


def _slot_tables(file: Path, capacity: int, held: int) -> list[SlotTable]:
    """Open a slot table and ``OTHERS``, which hold *held* slots: neighbours share a lock."""
    slot_tables = [SlotTable(file) for _ in range(OTHERS + 1)]
    _kept.extend(slot_tables)
    for slot_table in slot_tables:
        slot_table.resize(capacity)
    for n in range(held):
        _taken(slot_tables[1 + n % OTHERS]).hold(n + 1)
    slot_tables[OTHERS].request()  # so that all rows are looked at
    _calm()
    return slot_tables


def _calm() -> None:
    """Wait until no process waits any more."""
    sleep(2 * REQUEST_S)


def _taken(slot_table: SlotTable) -> Slot:
    slot = slot_table.take()
    assert slot is not None
    return slot


def _take_and_give(slot_table: SlotTable) -> Callable[[], None]:
    def work() -> None:
        slot_table.give(_taken(slot_table))

    return work


def _open(file: Path) -> None:
    with closing(SlotTable(file)):
        pass


if __name__ == "__main__":
    main()
