"""
Look at the workers, their processes and the database while a load is offered.

The workers' own counts are read as ``greenline top`` reads them. The connections at the database
are those that the server counts, so that an application without a pool of ours is counted too.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import Any, NamedTuple

from greenline import settings
from greenline.ops.values import Process, pool_names, process_of
from greenline.telemetry.counters import OF_ONE, Histogram, Key, Reader
from greenline.telemetry.request_counts import by_route
from greenline.tune.machine import MIB
from greenline.tune.results import Shares

EVERY_S = 0.1
CONNECT_S = 3
# The parts that a request's time has in the counts, by the name that a result has for it.
PARTS = {
    "queued": "queued_s",
    "pool": "pool_s",
    "connecting": "connecting_s",
    "postgres": "postgres_s",
    "mongodb": "mongodb_s",
    "writing": "writing_s",
    "hub": "hub_s",
}
COUNT = (
    "select count(*) from pg_stat_activity where backend_type = 'client backend' "
    "and datname = current_database() and pid <> pg_backend_pid()"
)


class Look(NamedTuple):
    """
    What the workers have done until a time.

    :param at_s: monotonic seconds, float.
    :param processes: what the kernel says, by the process id of a worker.
    :param requests: those whose time is noted, int.
    :param spent_s: seconds of all requests in each part, by its name.
    """

    at_s: float
    processes: Mapping[int, Process]
    requests: int
    spent_s: Mapping[str, float]


class Observed(NamedTuple):
    """
    What the workers have done between two looks.

    :param cpu: processors that they have used, float.
    :param queued: the part of the time in which a worker waited for a processor, float.
    :param memory_mib: of the largest worker, float.
    :param shares: where the time of a request went; None: there was none.
    """

    cpu: float
    queued: float
    memory_mib: float
    shares: Shares | None


class Workers:
    """
    The workers of one gunicorn.

    :param memory: the descriptor of the memory that they share, int.
    """

    def __init__(self, memory: int) -> None:
        self._reader = Reader(memory)

    def running(self) -> dict[int, Mapping[Key, int]]:
        """Return the values of each worker that has booted, by its process id."""
        found = {
            values.get((OF_ONE, "pid"), 0): values for values in self._reader.running().values()
        }
        return {pid: values for pid, values in found.items() if pid}

    def value(self, *key: str) -> float:
        """Return a value of the workers: its mean."""
        found = [values[key] for values in self.running().values() if key in values]
        return sum(found) / len(found) if found else 0.0

    def are_idle(self) -> bool:
        """Return whether no request is in progress or waits."""
        return not any(
            values.get(("limiter", name), 0)
            for values in self.running().values()
            for name in ("in_progress", "waiting")
        )

    def answered(self) -> int:
        """Return how many requests they have answered, also where their time is not noted."""
        totals = self._reader.totals()
        return sum(number for key, number in totals.items() if key[0] == "requests")

    def pools(self) -> list[str]:
        """Return the names of the pools that they have."""
        return pool_names(self._reader.values())

    def connections(self) -> int:
        """Return the connections of all pools."""
        values = self._reader.values()
        return sum(values.get((name, "size"), 0) for name in pool_names(values))

    def look(self) -> Look:
        """Return what they have done until now."""
        found = {pid: process_of(pid) for pid in self.running()}
        whole, parts = by_route(self._reader.histograms())
        return Look(
            monotonic(),
            {pid: one for pid, one in found.items() if one is not None},
            sum(sum(one.counts) for one in whole.values()),
            _spent_s(parts),
        )


def _spent_s(parts: Mapping[tuple[str, ...], Histogram]) -> dict[str, float]:
    spent_s: dict[str, float] = {}
    for (_, part), histogram in parts.items():
        spent_s[part] = spent_s.get(part, 0.0) + histogram.sum_s
    return spent_s


def between(first: Look, last: Look) -> Observed:
    """Return what the workers have done between two looks."""
    seconds = max(last.at_s - first.at_s, 1e-3)
    # A worker that began in between has used all of its time in between.
    cpu_s = sum(
        one.cpu_s - (first.processes[pid].cpu_s if pid in first.processes else 0.0)
        for pid, one in last.processes.items()
    )
    queued_s = [
        one.queued_s - first.processes[pid].queued_s
        for pid, one in last.processes.items()
        if pid in first.processes
    ]
    queued = sum(queued_s) / len(queued_s) / seconds if queued_s else 0.0
    memory_bytes = max((one.memory_bytes for one in last.processes.values()), default=0)
    requests = last.requests - first.requests
    shares = None
    if requests > 0:
        mean_s = {
            part: max(spent_s - first.spent_s.get(part, 0.0), 0.0) / requests
            for part, spent_s in last.spent_s.items()
        }
        named = {field: mean_s.pop(part, 0.0) for part, field in PARTS.items()}
        # The application's, and what a library of it waits for, such as redis.
        shares = Shares(**named, application_s=sum(mean_s.values()))
    return Observed(cpu_s / seconds, queued, memory_bytes / MIB, shares)


class Peak:
    """The most connections that were seen at one time."""

    connections = 0


@contextmanager
def connections_watched(workers: Workers | None) -> Iterator[Peak]:
    """
    Count the connections at the database for the length of the block.

    :param workers: their pools are counted where ``DATABASE_URL`` names no Postgres that can be
        asked; None: there are none.
    """
    peak, is_over = Peak(), Event()
    with _counter(workers) as count:

        def watch() -> None:
            while not is_over.wait(EVERY_S):
                # A server that takes no more queries counts as its last number.
                with suppress(Exception):
                    peak.connections = max(peak.connections, count())

        thread = Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield peak
        finally:
            is_over.set()
            thread.join()


@contextmanager
def _counter(workers: Workers | None) -> Iterator[Callable[[], int]]:
    conn: Any = None
    if url := settings.databases()[0]:
        with suppress(Exception):  # another driver, or a server that is full
            import psycopg2

            conn = psycopg2.connect(url, connect_timeout=CONNECT_S)
            conn.autocommit = True
    if conn is None:
        yield workers.connections if workers is not None else lambda: 0
        return
    # This connection is opened before the load, and is not counted.
    with closing(conn), conn.cursor() as cursor:

        def count() -> int:
            cursor.execute(COUNT)
            return int(cursor.fetchone()[0])

        yield count
