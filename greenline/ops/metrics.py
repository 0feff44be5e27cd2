"""
Name the counts of all workers as Prometheus' guidelines ask for, and collect them for a scrape.

https://prometheus.io/docs/practices/naming/ has the guidelines. The counts are read when they are
asked for, by prometheus_client's registry.
"""

import os
import platform
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from greenline import __version__, settings
from greenline.ops.values import lag_s, pool_names, process_of, slot_names
from greenline.telemetry.counters import CACHE, OF_ONE, SLOTS, Histogram, Key, Reader
from greenline.telemetry.histograms import BUCKETS, cumulative
from greenline.telemetry.reports import ReportReader, RequestReport
from greenline.telemetry.request_counts import REASONS, by_route

EVERY = 8  # buckets: at /metrics the bounds are the powers of 2
BOUNDS = [le_s for le_s, _ in cumulative([0] * BUCKETS, EVERY)]
MAX_ID = 100  # characters of a request's id; OpenMetrics allows 128 of an exemplar's labels
LIBRARIES = ("gevent", "gunicorn")
SECRETS = {settings.OPS_TOKEN.name}
# A count of all workers without labels: its key, its name, and what it is.
COUNTS = (
    ("deadlines", "deadlines", "Requests that were answered 504: their time had run out."),
    ("gone", "client_disconnects", "Clients that disconnected before their answer."),
    ("hub_blocked", "hub_blocks", "Times that the hub was blocked."),
)
# A sum over the running workers: its key, its name, and what it is.
SUMS = (
    (("limiter", "in_progress"), "requests_in_progress", "Requests that are worked on."),
    (("limiter", "waiting"), "requests_waiting", "Requests that wait for their turn."),
    (("limiter", "limit"), "concurrency_limit", "Requests that may be worked on at once."),
    (("connections", "open"), "connections", "Connections of clients."),
    (("connections", "idle"), "connections_idle", "Connections of clients without a request."),
    (("connections", "max"), "connections_max", "worker_connections of all workers."),
    (("handlers", "size"), "handlers", "Greenlets that run requests, with those that are idle."),
    (("handlers", "idle"), "handlers_idle", "Greenlets that wait for a request to run."),
    (("psycopg2", "waiting"), "psycopg2_waiting", "Requests that wait for a slot of Postgres."),
    (("psycopg2", "unpooled"), "psycopg2_unpooled", "Connections that passed the pool by."),
)
STATES = ("active", "idle", "leaving")
# Of a pool: a count, its name, its unit, and what it is.
CHECKOUTS = "requests_num"
POOL_COUNTS = (
    (CHECKOUTS, "checkouts", 1, "Connections that were requested."),
    ("requests_queued", "checkouts_queued", 1, "Requests for a connection that waited."),
    ("requests_wait_ms", "wait_seconds", 1000, "Time that they waited."),
    ("requests_errors", "checkout_errors", 1, "Requests that got no connection."),
    ("usage_ms", "usage_seconds", 1000, "Time that connections were checked out."),
    ("returns_bad", "bad_returns", 1, "Connections that had to be closed at their return."),
    ("connections_num", "connects", 1, "Attempts to connect."),
    ("connections_ms", "connect_seconds", 1000, "Time of those that succeeded."),
    ("connections_errors", "connect_errors", 1, "Those that failed."),
    ("connections_lost", "lost_connections", 1, "Idle connections that were found closed."),
)
# Of a cache: a count, its name, and what it is.
CACHE_COUNTS = (
    ("hits", "hits", "Fresh values that were returned."),
    ("stale", "stale_hits", "Values that were returned after their time."),
    ("waits", "waits", "Callers that waited for the load of another one."),
    ("loads", "loads", "Loads that began."),
    ("failures", "load_failures", "Loads that raised an error."),
    ("evictions", "evictions", "Values that made room for others."),
    ("invalidations", "invalidations", "Calls that invalidated a key, a tag or everything."),
    ("shared", "shared_loads", "Loads for which another worker of the host had loaded."),
    ("too_large", "too_large", "Values that were not kept, because the cache is too small."),
)
CACHE_VALUES = (
    ("values", "values", "Values in the caches."),
    ("size_bytes", "bytes", "Memory of the values, as the caches count it."),
    ("max_bytes", "bytes_max", "Memory that they may take."),
)
# Of a host's slot table: a value, its name, and what it is.
SLOT_VALUES = (
    ("held", "held", "Slots of the workers' connections."),
    ("orphans", "orphans", "Slots of killed processes, whose backends may live."),
    ("held_by_all", "held_by_all", "Slots of all processes of the host."),
    ("capacity", "capacity", "Slots that the host has."),
    ("wanting", "wanted", "Processes that wait for a slot."),
)


class Metrics(Collector):
    """
    Collect the metrics of all workers of an arbiter.

    :param reader: reads the counts.
    :param reports: reads the reports of the same workers.
    """

    def __init__(self, reader: Reader, reports: ReportReader) -> None:
        self._reader = reader
        self._reports = reports
        self._build = _build()
        self._configured = 0  # the last known, while no worker runs

    def collect(self) -> Iterator[Metric]:
        """Read all counts, and yield the metrics."""
        totals = self._reader.totals()
        yield _requests(totals)
        yield from self._durations()
        for key, name, what in COUNTS:
            yield CounterMetricFamily(f"greenline_{name}", what, value=totals.get((key,), 0))
        yield _refused(totals)
        yield _blocking(totals)
        for part, name, what in SUMS:
            if part in totals:
                yield GaugeMetricFamily(f"greenline_{name}", what, value=totals[part])
        yield from _pools(totals)
        yield from _slots(totals)
        yield from _caches(totals)
        yield from self._workers(self._reader.running())
        yield self._build
        yield _settings()

    def _durations(self) -> Iterator[Metric]:
        whole = HistogramMetricFamily(
            "greenline_request_duration_seconds",
            "Time from the first byte of a request to the last one of its answer.",
            labels=["route"],
        )
        parts = HistogramMetricFamily(
            "greenline_request_part_seconds",
            "Time that requests have spent in queues, in a database, in writing their answers, and "
            "in the application; those that have spent none there are not counted.",
            labels=["route", "part"],
        )
        exemplars = self._exemplars()
        for family, found in zip((whole, parts), by_route(self._reader.histograms()), strict=True):
            for labels, histogram in sorted(found.items()):
                known = exemplars.get(labels[0], {}) if family is whole else {}
                family.add_metric(labels, list(_buckets(histogram, known)), histogram.sum_s)
        yield whole
        yield parts

    def _exemplars(self) -> dict[str, dict[int, Exemplar]]:
        """Return by route and bucket the last request with an id that was slow or failed."""
        found: dict[str, dict[int, Exemplar]] = {}
        for each in self._reports.events():
            if isinstance(each, RequestReport) and 1 < len(each.request_id) <= MAX_ID:
                bucket = bisect_left(BOUNDS, each.took_s)
                exemplar = Exemplar({"request_id": each.request_id}, each.took_s, each.time)
                found.setdefault(each.route, {}).setdefault(bucket, exemplar)
        return found

    def _workers(self, running: Mapping[int, Mapping[Key, int]]) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "greenline_worker_hub_lag_seconds",
            "How late the hub is; it is asked ten times a second.",
            labels=["worker"],
        )
        memory = GaugeMetricFamily(
            "greenline_worker_resident_memory_bytes", "Resident memory.", labels=["worker"]
        )
        cpu = CounterMetricFamily(
            "greenline_worker_cpu_seconds", "Processor time; it begins anew with a new process.",
            labels=["worker"],
        )  # fmt: skip
        for row, values in running.items():
            labels = [str(row)]
            lag.add_metric(labels, lag_s(self._reports, row, values))
            if (process := process_of(values.get(("worker", "pid"), 0))) is not None:
                memory.add_metric(labels, process.memory_bytes)
                cpu.add_metric(labels, process.cpu_s)
        found = [values.get((OF_ONE, "configured"), 0) for values in running.values()]
        self._configured = max(found, default=0) or self._configured
        yield GaugeMetricFamily("greenline_workers", "Workers that run.", value=len(running))
        yield GaugeMetricFamily(
            "greenline_workers_configured", "The workers of gunicorn's settings.",
            value=self._configured,
        )  # fmt: skip
        yield from (lag, memory, cpu)


def _buckets(
    histogram: Histogram, exemplars: Mapping[int, Exemplar]
) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
    before = 0
    for number, (le_s, count) in enumerate(cumulative(histogram.counts, EVERY)):
        # One that has ended in this moment may not be counted yet.
        if number in exemplars and count > before:
            yield _bound(le_s), count, exemplars[number]
        else:
            yield _bound(le_s), count
        before = count


def _bound(le_s: float) -> str:
    text: str = floatToGoString(le_s)  # type: ignore[no-untyped-call]
    return text


def _labelled(family: CounterMetricFamily, key: str, totals: Mapping[Key, int]) -> Metric:
    """Return *family* with the counts of all keys that begin with *key*; the rest are labels."""
    for (name, *labels), count in sorted(totals.items(), key=str):
        if name == key:
            family.add_metric(list(map(str, labels)), count)
    return family


def _requests(totals: Mapping[Key, int]) -> Metric:
    family = CounterMetricFamily(
        "greenline_requests",
        "Requests that were answered, by the rule of the framework that matched.",
        labels=["route", "method", "status"],
    )
    return _labelled(family, "requests", totals)


def _blocking(totals: Mapping[Key, int]) -> Metric:
    family = CounterMetricFamily(
        "greenline_hub_blocks_logged",
        "Of the times that the hub was blocked, those that are in the log, by the function.",
        labels=["function"],
    )
    return _labelled(family, "hub_blocked_by", totals)


def _pools(totals: Mapping[Key, int]) -> Iterator[Metric]:
    pools = pool_names(totals)
    size = GaugeMetricFamily(
        "greenline_pool_connections", "Connections of the pools.", labels=["pool", "state"]
    )
    largest = GaugeMetricFamily(
        "greenline_pool_connections_max", "Connections that the pools may have.", labels=["pool"]
    )
    waiting = GaugeMetricFamily(
        "greenline_pool_waiting", "Greenlets that wait for a connection.", labels=["pool"]
    )
    for pool in pools:
        for state in STATES:
            if (pool, state) in totals:
                size.add_metric([pool, state], totals[pool, state])
        if (pool, "max") in totals:
            largest.add_metric([pool], totals[pool, "max"])
        waiting.add_metric([pool], totals.get((pool, "waiting"), 0))
    yield from (size, largest, waiting)
    # Those of workers that have ended as well: a count must not vanish at a reload.
    counted = sorted({*pools, *(str(pool) for pool, *what in totals if what == [CHECKOUTS])})
    for key, name, unit, what in POOL_COUNTS:
        family = CounterMetricFamily(f"greenline_pool_{name}", what, labels=["pool"])
        for pool in counted:
            family.add_metric([pool], totals.get((pool, key), 0) / unit)
        yield family


def _refused(totals: Mapping[Key, int]) -> Metric:
    what = "Requests that were refused with a 503: too many waited, or for too long."
    family = CounterMetricFamily("greenline_refused_requests", what, labels=["reason"])
    for reason in REASONS:  # zeros as well: an increase from nothing is none for Prometheus
        family.add_metric([reason], totals.get(("refused", reason), 0))
    return family


def _caches(totals: Mapping[Key, int]) -> Iterator[Metric]:
    names = sorted({str(name) for name, *_ in totals if str(name).startswith(CACHE)})
    if not names:
        return
    for table, kind in ((CACHE_COUNTS, CounterMetricFamily), (CACHE_VALUES, GaugeMetricFamily)):
        for key, metric, what in table:
            family = kind(f"greenline_cache_{metric}", what, labels=["cache"])
            for name in names:
                family.add_metric([name.removeprefix(CACHE)], totals.get((name, key), 0))
            yield family


def _slots(totals: Mapping[Key, int]) -> Iterator[Metric]:
    names = slot_names(totals)
    for value, name, what in SLOT_VALUES:
        family = GaugeMetricFamily(f"greenline_slots_{name}", what, labels=["pool"])
        for each in names:
            family.add_metric([each.removeprefix(SLOTS)], totals.get((each, value), 0))
        yield family


def _build() -> Metric:
    versions = {"version": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return InfoMetricFamily("greenline_build", "Versions.", value=versions)


def _settings() -> Metric:
    family = GaugeMetricFamily(
        "greenline_setting_info", "The settings of the worker that are set.",
        labels=["name", "value"],
    )  # fmt: skip
    for variable in settings.OF_WORKER:
        if variable.is_set() and variable.name not in SECRETS:
            family.add_metric([variable.name, os.environ[variable.name].strip()], 1)
    return family
