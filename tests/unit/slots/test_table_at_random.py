"""The slot table under random interleavings: the limit holds, shares become fair."""

import itertools
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from greenline.slots import Slot, SlotTable
from greenline.slots.table import LAST_RESORT, MAX_OVERFLOW
from tests.helpers.clock import Clock
from tests.unit.slots.slot_tables import slot_tables

ACTS = (
    "take", "take", "take", "control", "hold", "give", "abandon", "kill", "open", "die", "care",
    "care", "request", "shrink", "grow",
)  # fmt: skip
TICK_S = 0.005


class Server:
    """Counts the backends, which live on when their clients are killed."""

    def __init__(self) -> None:
        self.backends: dict[int, int] = {}  # by pid, the number of the slot each was made in
        self._pids = itertools.count(1)

    def connect(self, slot: Slot) -> int:
        assert slot.number not in self.backends.values()
        pid = next(self._pids)
        self.backends[pid] = slot.number
        return pid

    def is_disconnected(self, orphan: Slot) -> bool:
        if orphan.pid:
            return orphan.pid not in self.backends
        return orphan.number not in self.backends.values()


class Worker:
    """A process: a slot table, and the backend in each slot that it holds."""

    def __init__(self, slot_table: SlotTable) -> None:
        self.slot_table = slot_table
        self.pid_in: dict[Slot, int] = {}


@settings(max_examples=300)
@given(
    acts=st.lists(
        st.tuples(st.sampled_from(ACTS), st.integers(0, 3), st.integers(0, 5)), max_size=60
    ),
    capacity=st.integers(1, 8),
    reserved=st.integers(0, 8),
)
@example(  # a control connection that moves to a slot that is kept for it
    acts=[("control", 0, 0), ("control", 0, 0), ("care", 0, 0), ("take", 0, 0)],
    capacity=3,
    reserved=2,
)
@example(  # a control connection, after a shrinking, where all is held
    acts=[("take", 0, 0), ("take", 0, 0), ("shrink", 0, 0), ("control", 0, 0)],
    capacity=2,
    reserved=0,
)
def test_whichever_process_is_killed_the_server_has_no_more_than_the_capacity(
    acts: list[tuple[str, int, int]], capacity: int, reserved: int
) -> None:
    """No slot serves two, none is lost, and after the last backend all can be taken again."""
    clock, server = Clock(1000.0), Server()
    with (
        tempfile.TemporaryDirectory() as folder,
        slot_tables(Path(folder) / "slots", clock) as opened,
    ):
        workers = [Worker(opened(capacity, reserved)) for _ in range(3)]
        for act, who, which in acts:
            clock.now += TICK_S
            before = len(server.backends)
            if act == "open" and len(workers) < 6:
                workers.append(Worker(opened(capacity, reserved)))
            elif act == "die" and server.backends:
                # One that is not in use any more: its client was killed, or closed it.
                used = {pid for worker in workers for pid in worker.pid_in.values()}
                for pid in sorted(set(server.backends) - used)[:1]:
                    del server.backends[pid]
            elif act in ("shrink", "grow") and not reserved:  # who is kept one is not held up
                capacity = max(capacity - 2, 1) if act == "shrink" else capacity + 1
                for worker in workers:
                    worker.slot_table.resize(capacity)
            elif workers:
                step(act, workers, workers[who % len(workers)], which, server)
            assert len(server.backends) <= max(capacity, before) + MAX_OVERFLOW
            overflow = list(server.backends.values()).count(LAST_RESORT)
            assert overflow <= MAX_OVERFLOW
            assert len(server.backends) - overflow <= max(capacity, before)
        for worker in workers:
            for slot in worker.pid_in:
                worker.slot_table.give(slot)
            for orphan in worker.slot_table.orphans():
                worker.slot_table.give(orphan)
        last = opened(capacity)
        clock.now += 1  # all requests have ended
        for orphan in last.orphans():
            last.give(orphan)
        slots = [last.take() for _ in range(capacity + 1)]
        assert [slot is None for slot in slots] == [False] * capacity + [True]


def step(act: str, workers: list[Worker], worker: Worker, which: int, server: Server) -> None:
    """Let *worker* do something."""
    slots = list(worker.pid_in)
    one = slots[which % len(slots)] if slots else None
    if act in ("take", "control"):
        slot = worker.slot_table.take(for_control=act == "control")
        if slot is not None:
            worker.pid_in[slot] = server.connect(slot)
    elif act == "hold" and one:
        one.hold(worker.pid_in[one])
    elif act == "give" and one:
        del server.backends[worker.pid_in.pop(one)]
        worker.slot_table.give(one)
    elif act == "abandon" and one:
        del worker.pid_in[one]
        worker.slot_table.abandon(one)
    elif act == "kill":
        worker.slot_table.close()
        workers.remove(worker)
    elif act == "care":
        for orphan in worker.slot_table.orphans():
            if server.is_disconnected(orphan):
                worker.slot_table.give(orphan)
        for slot, pid in worker.pid_in.items():  # a control connection may have moved
            server.backends[pid] = slot.number
    elif act == "request":
        worker.slot_table.request()


@settings(max_examples=60)
@given(
    demands=st.lists(st.integers(0, 30), min_size=2, max_size=6),
    greed=st.permutations(range(6)),
    capacity=st.integers(12, 40),
    late_ticks=st.integers(0, 4),
    has_reserve=st.booleans(),
)
def test_shares_become_fair_and_then_stay(
    demands: list[int], greed: list[int], capacity: int, late_ticks: int, has_reserve: bool
) -> None:
    """
    From any beginning: who wants more holds at most one less than anybody, nothing is free
    meanwhile, and then none releases any more.
    """
    clock = Clock(1000.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        slot_tables(Path(folder) / "slots", clock) as opened,
    ):
        reserved = len(demands) if has_reserve else 0
        all_of = [opened(capacity, reserved) for _ in demands]
        held: list[list[Slot]] = [[] for _ in demands]
        for n in greed:  # one after the other takes all it gets
            while n < len(demands) and (slot := all_of[n].take()):
                held[n].append(slot)
        leaving: list[tuple[int, SlotTable, Slot]] = []
        given_at = 0
        for tick in range(600):
            clock.now += TICK_S
            for n, slot_table in enumerate(all_of):
                if len(held[n]) < demands[n]:
                    slot = slot_table.take()
                    if slot is None:
                        slot_table.request()
                    else:
                        held[n].append(slot)
                is_busy = len(held[n]) <= demands[n]
                for slot in held[n]:
                    if slot_table.should_give(slot) if is_busy else slot_table.is_wanted(slot):
                        held[n].remove(slot)
                        leaving.append((tick + late_ticks, slot_table, slot))
                        given_at = tick
                        break
            for gone in [each for each in leaving if each[0] <= tick]:
                leaving.remove(gone)
                gone[1].give(gone[2])
        counts = [len(slots) for slots in held]
        hungry = [n for n, count in enumerate(counts) if count < demands[n]]
        assert all(counts[n] >= max(counts) - 1 for n in hungry), (counts, demands)
        assert not hungry or all_of[0].stats()["free"] == 0
        assert not hungry or given_at < 500, (counts, demands, given_at)
