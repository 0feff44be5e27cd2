"""
Watch the shared memory, and compute from the last looks what the workers do now.

Rates are those of the last second or two, and quantiles those of the last ten seconds.
"""

from collections import deque
from collections.abc import Mapping
from itertools import starmap
from operator import sub
from threading import Lock
from time import monotonic, sleep, time
from typing import NamedTuple

from greenline import __version__
from greenline.ops.findings import findings
from greenline.ops.states import (
    BlockedState,
    PoolState,
    RouteState,
    SlotsState,
    State,
    WorkerState,
)
from greenline.ops.values import lag_s, pool_names, process_of
from greenline.telemetry.counters import OF_ONE, SLOTS, Histogram, Key, Reader
from greenline.telemetry.histograms import BUCKETS, quantile
from greenline.telemetry.reports import BlockReport, ReportReader, RequestReport
from greenline.telemetry.request_counts import by_route

EVERY_S = 1.0
WINDOW_S = 10.0
STALE_S = 15.0
MAX_ROUTES = 12
MAX_REQUESTS, MAX_BLOCKS = 50, 10
BLOCKED_S = 0.5  # a hub that has not run for longer is blocked
FAILED = 500


class Look(NamedTuple):
    """
    What the shared memory had at one time.

    :param at_s: monotonic seconds, float.
    :param totals: the counts and values of all workers.
    :param durations: by the labels of the route.
    :param parts: durations by route and part.
    :param cpu_s: the processor time of each process, by its id.
    """

    at_s: float
    totals: Mapping[Key, int]
    durations: Mapping[tuple[str, ...], Histogram]
    parts: Mapping[tuple[str, ...], Histogram]
    cpu_s: Mapping[int, float]


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
            if self._looks and now - self._looks[-1].at_s > STALE_S:
                self._looks.clear()
            if not self._looks:
                self._looks.append(self._look())
                self._state = None
                sleep(EVERY_S)
            if self._state is None or monotonic() - self._looks[-1].at_s >= EVERY_S:
                self._looks.append(self._look())
                while self._looks[-1].at_s - self._looks[0].at_s > WINDOW_S + EVERY_S:
                    self._looks.popleft()
                self._state = self._compute()
            return self._state

    def running(self) -> dict[int, dict[Key, int]]:
        """Return the values of each worker that has booted, by the number of its row."""
        return {row: values for row, values in self.reader.running().items() if _pid(values)}

    def _look(self) -> Look:
        running = self.running()
        durations, parts = by_route(self.reader.histograms())
        processes = {pid: process_of(pid) for pid in map(_pid, running.values())}
        cpu_s = {pid: found.cpu_s for pid, found in processes.items() if found is not None}
        return Look(monotonic(), self.reader.totals(), durations, parts, cpu_s)

    def _compute(self) -> State:
        now, before, first = self._looks[-1], self._looks[-2], self._looks[0]
        running = self.running()
        workers = [self._worker(row, values) for row, values in running.items()]
        events = self.reports.events()
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
                "refused": _rate(now, before, "refused"),
                "failed": _rate(now, before, "requests", failed=True),
                "deadlines": _rate(now, before, "deadlines"),
                "disconnected": _rate(now, before, "gone"),
            },
            p50_s=quantile(window.counts, 0.5),
            p99_s=quantile(window.counts, 0.99),
            workers=workers,
            pools=_pools(now.totals),
            slots=_slots(list(running.values())),
            routes=routes[:MAX_ROUTES],
            blocked=[
                BlockedState(_pid(running[row]), seconds, self.reports.hub(row))
                for row in running
                if (seconds := self.reports.late_s(row)) > BLOCKED_S
            ],
            requests=[each for each in events if isinstance(each, RequestReport)][:MAX_REQUESTS],
            blocks=[each for each in events if isinstance(each, BlockReport)][:MAX_BLOCKS],
            plans=plans,
        )
        state.findings = findings(state)
        return state

    def _worker(self, row: int, values: Mapping[Key, int]) -> WorkerState:
        now, before = self._looks[-1], self._looks[-2]
        pid = _pid(values)
        process = process_of(pid)
        used_s = now.cpu_s.get(pid, 0.0) - before.cpu_s.get(pid, now.cpu_s.get(pid, 0.0))
        get = values.get
        return WorkerState(
            pid=pid,
            lag_s=lag_s(self.reports, row, values),
            is_blocked=self.reports.late_s(row) > BLOCKED_S,
            connections=get(("connections", "open"), 0),
            connections_max=get(("connections", "max"), 0),
            in_progress=get(("limiter", "in_progress"), 0),
            waiting=get(("limiter", "waiting"), 0),
            limit=get(("limiter", "limit"), 0),
            memory_bytes=0 if process is None else process.memory_bytes,
            cpu=used_s / (now.at_s - before.at_s),
            pools=_pools(values),
            slots={
                str(name).removeprefix(SLOTS): value
                for (name, what), value in values.items()
                if str(name).startswith(SLOTS) and what == "held"
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
    return RouteState(
        route,
        number / (now.at_s - first.at_s),
        quantile(grown.counts, 0.5),
        quantile(grown.counts, 0.99),
        {part: part_s for part, part_s in sorted(parts_s.items()) if part_s > 0},
    )


def _pools(values: Mapping[Key, int]) -> dict[str, PoolState]:
    return {
        name: PoolState(
            max_size=values.get((name, "max"), 0),
            active=values.get((name, "active"), 0),
            idle=values.get((name, "idle"), 0),
            waiting=values.get((name, "waiting"), 0),
        )
        for name in pool_names(values)
    }


def _slots(workers: list[Mapping[Key, int]]) -> dict[str, SlotsState]:
    names = {str(key[0]) for values in workers for key in values if str(key[0]).startswith(SLOTS)}
    found = {}
    for name in sorted(names):

        def of(what: str, name: str = name) -> list[int]:
            return [values.get((name, what), 0) for values in workers]

        found[name.removeprefix(SLOTS)] = SlotsState(
            max(of("capacity")), max(of("held_by_all")), sum(of("orphans")), max(of("wanting"))
        )
    return found
