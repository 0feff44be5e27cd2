"""
Watch the shared memory, and compute from the last looks what the workers do now.

Requests a second are those of the last second or two; other rates and the quantiles are those of
the last ten seconds.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import starmap
from operator import sub
from threading import Lock
from time import monotonic, sleep, time
from typing import NamedTuple

from greenline import __version__
from greenline.ops.findings import findings, slots_text
from greenline.ops.states import (
    BlockedState,
    PoolState,
    RouteState,
    SlotsState,
    State,
    WorkerSlots,
    WorkerState,
)
from greenline.ops.values import BLOCKED_S, Process, lag_s, pool_names, process_of, slot_names
from greenline.telemetry.counters import OF_ONE, SLOTS, Histogram, Key, Reader
from greenline.telemetry.histograms import BUCKETS, quantile
from greenline.telemetry.reports import (
    BlockReport,
    HubState,
    ReportReader,
    RequestReport,
    function_of,
)
from greenline.telemetry.request_counts import by_route

EVERY_S = 1.0
WINDOW_S = 10.0
MAX_ROUTES = 12
MAX_REQUESTS, MAX_BLOCKS = 50, 10
FAILED = 500
NO_PROCESS = Process(0, 0.0, 0.0)
NO_SLOTS: Mapping[str, SlotsState] = {}


class Look(NamedTuple):
    """
    What the shared memory had at one time.

    :param at_s: monotonic seconds, float.
    :param totals: the counts and values of all workers.
    :param running: the values of each worker, by the number of its row.
    :param durations: by the labels of the route.
    :param parts: durations by route and part.
    :param processes: what the kernel says about each worker, by its process id.
    """

    at_s: float
    totals: Mapping[Key, int]
    running: Mapping[int, Mapping[Key, int]]
    durations: Mapping[tuple[str, ...], Histogram]
    parts: Mapping[tuple[str, ...], Histogram]
    processes: Mapping[int, Process]


class Watch:
    """
    Watch the workers behind one shared memory; several threads may ask at once.

    :param memory: its descriptor, int.
    """

    def __init__(self, memory: int) -> None:
        self.reader, self.reports = Reader(memory), ReportReader(memory)
        self._lock = Lock()
        self._looks: deque[Look] = deque()
        self._state: State | None = None

    def state(self) -> State:
        """Return the state, not older than a second; the first time this takes a second."""
        with self._lock:
            now = monotonic()
            if self._looks and now - self._looks[-1].at_s > WINDOW_S:
                self._looks.clear()
            if not self._looks:
                self._looks.append(self._look())
                self._state = None
                sleep(EVERY_S)
            if self._state is None or monotonic() - self._looks[-1].at_s >= EVERY_S:
                self._looks.append(self._look())
                # Two stay: the state is computed from what has changed.
                while (
                    len(self._looks) > 2 and self._looks[-1].at_s - self._looks[0].at_s > WINDOW_S
                ):
                    self._looks.popleft()
                self._state = self._compute()
            return self._state

    def running(self) -> dict[int, dict[Key, int]]:
        """Return the values of each worker that has booted, by the number of its row."""
        return {row: values for row, values in self.reader.running().items() if _pid(values)}

    def _look(self) -> Look:
        running = self.running()
        durations, parts = by_route(self.reader.histograms())
        found = {pid: process_of(pid) for pid in map(_pid, running.values())}
        processes = {pid: one for pid, one in found.items() if one is not None}
        return Look(monotonic(), self.reader.totals(), running, durations, parts, processes)

    def _compute(self) -> State:
        now, before, first = self._looks[-1], self._looks[-2], self._looks[0]
        running = now.running
        workers = [self._worker(row, values) for row, values in running.items()]
        events = self.reports.events()
        slots = _slots(now.totals, workers)
        plans: dict[str, str] = {}
        for row in running:
            plans.update(self.reports.tables(row))
        window = Histogram([0] * BUCKETS, 0.0)
        routes = []
        for labels, histogram in now.durations.items():
            grown = _growth(histogram, first.durations.get(labels))
            window += grown
            if number := sum(grown.counts):
                routes.append(_route(labels[0], grown, number, now, first))
        routes.sort(key=lambda each: each.p99_s or 0.0, reverse=True)
        state = State(
            time=time(),
            version=__version__,
            findings=[],
            rate=_rate(now, before, "requests"),
            rates={
                "refused": _rate(now, first, "refused"),
                "failed": _rate(now, first, "requests", failed=True),
                "deadlines": _rate(now, first, "deadlines"),
                "disconnected": _rate(now, first, "gone"),
            },
            p50_s=quantile(window.counts, 0.5),
            p99_s=quantile(window.counts, 0.99),
            workers=workers,
            pools=_pools(now.totals, slots),
            slots=slots,
            routes=routes,
            blocked=[
                _blocked(_pid(running[row]), seconds, self.reports.hub(row))
                for row in running
                if (seconds := self.reports.late_s(row)) > BLOCKED_S
            ],
            requests=[each for each in events if isinstance(each, RequestReport)][:MAX_REQUESTS],
            blocks=[each for each in events if isinstance(each, BlockReport)][:MAX_BLOCKS],
            plans=plans,
        )
        state.findings = findings(state)  # of all routes
        del state.routes[MAX_ROUTES:]
        return state

    def _worker(self, row: int, values: Mapping[Key, int]) -> WorkerState:
        now, before = self._looks[-1], self._looks[-2]
        pid = _pid(values)
        process = now.processes.get(pid, NO_PROCESS)
        earlier = before.processes.get(pid, process)
        seconds = now.at_s - before.at_s
        late_s = self.reports.late_s(row)
        get = values.get
        in_progress = get(("limiter", "in_progress"), 0)
        if late_s > BLOCKED_S and (hub := self.reports.hub(row)) is not None:
            in_progress = len(hub.requests)  # the value is of the time before
        return WorkerState(
            pid=pid,
            lag_s=lag_s(self.reports, row, values),
            is_blocked=late_s > BLOCKED_S,
            connections=get(("connections", "open"), 0),
            connections_max=get(("connections", "max"), 0),
            in_progress=in_progress,
            waiting=get(("limiter", "waiting"), 0),
            max_waiting=get(("limiter", "max_waiting"), 0),
            limit=get(("limiter", "limit"), 0),
            memory_bytes=process.memory_bytes,
            cpu=(process.cpu_s - earlier.cpu_s) / seconds,
            queued=(process.queued_s - earlier.queued_s) / seconds,
            pools=_pools(values),
            slots={
                name.removeprefix(SLOTS): WorkerSlots(
                    get((name, "held"), 0), bool(get((name, "waiting"), 0))
                )
                for name in slot_names(values)
            },
        )


def _pid(values: Mapping[Key, int]) -> int:
    return values.get((OF_ONE, "pid"), 0)


def _rate(now: Look, before: Look, name: str, *, failed: bool = False) -> float:
    """Return by how much the counts with a name have grown in a second, of requests or of 5xx."""
    grown = sum(
        count - before.totals.get(key, 0)
        for key, count in now.totals.items()
        if key[0] == name and (not failed or int(key[-1]) >= FAILED)
    )
    return grown / (now.at_s - before.at_s)


def _growth(now: Histogram, before: Histogram | None) -> Histogram:
    if before is None:
        return now
    counts = list(starmap(sub, zip(now.counts, before.counts, strict=True)))
    return Histogram(counts, now.sum_s - before.sum_s)


def _route(route: str, grown: Histogram, number: int, now: Look, first: Look) -> RouteState:
    parts_s = {
        part: _growth(histogram, first.parts.get((of_route, part))).sum_s / number
        for (of_route, part), histogram in now.parts.items()
        if of_route == route
    }
    failed = sum(
        count - first.totals.get(key, 0)
        for key, count in now.totals.items()
        if key[:2] == ("requests", route) and int(key[-1]) >= FAILED
    )
    return RouteState(
        route,
        number / (now.at_s - first.at_s),
        min(failed / number, 1.0),
        quantile(grown.counts, 0.5),
        quantile(grown.counts, 0.99),
        {part: part_s for part, part_s in sorted(parts_s.items()) if part_s > 0},
    )


def _pools(
    values: Mapping[Key, int], slots: Mapping[str, SlotsState] = NO_SLOTS
) -> dict[str, PoolState]:
    def max_size(name: str) -> int:
        size = values.get((name, "max"), 0)
        # While the others idle each worker may have more than its share; together they may not.
        return min(size, slots[name].capacity) if name in slots else size

    return {
        name: PoolState(
            max_size=max_size(name),
            active=values.get((name, "active"), 0),
            idle=values.get((name, "idle"), 0),
            waiting=values.get((name, "waiting"), 0),
        )
        for name in pool_names(values)
    }


def _blocked(pid: int, seconds: float, hub: HubState | None) -> BlockedState:
    function = function_of(hub.stack) if hub is not None and hub.stack else ""
    return BlockedState(pid, seconds, function, hub)


def _slots(totals: Mapping[Key, int], workers: Sequence[WorkerState]) -> dict[str, SlotsState]:
    slots = {
        name.removeprefix(SLOTS): SlotsState(
            totals.get((name, "capacity"), 0),
            totals.get((name, "held_by_all"), 0),
            totals.get((name, "orphans"), 0),
            totals.get((name, "wanting"), 0),
        )
        for name in slot_names(totals)
    }
    for name, one in slots.items():
        one.text = slots_text(name, one, workers)
    return slots
