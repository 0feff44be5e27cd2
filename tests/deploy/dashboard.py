"""
The dashboard of deploy/grafana: the metrics of docs/watch.md, in the order of the questions.

``python -m tests.deploy.dashboard`` writes it anew. Grafana's own library knows the fields of the
schema, which mypy compares; its version is that of the Grafana whose schema it is.
"""

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from grafana_foundation_sdk.builders import common, prometheus
from grafana_foundation_sdk.builders.bargauge import Panel as BarGauge
from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.table import Panel as Table
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

PATH = Path(__file__).parents[2] / "deploy/grafana/greenline.json"
# It is chosen on the page, so that the dashboard is imported without a question.
SOURCE = DataSourceRef("prometheus", "${datasource}")
CHOSEN = 'job=~"$job",instance=~"$instance"'
WIDTH, STAT_HEIGHT, HEIGHT = 24, 4, 8
HOST = "{{instance}}"
RUN = "run"  # a number that is neither good nor bad
WORKER = "{{instance}} worker {{worker}}"

Queries = Mapping[str, str]  # by what the legend says of each series
Steps = Mapping[float, str]  # colours, each from a value on


def now(name: str, more: str = "") -> str:
    """Return the series of a metric; *more* are matchers of labels, each with a comma after it."""
    return f"greenline_{name}{{{more}{CHOSEN}}}"


def rate(name: str, more: str = "") -> str:
    """Return the rate of a counter, as far back as Grafana needs for its resolution."""
    return f"rate({now(name, more)}[$__rate_interval])"


def quantile(q: float, labels: str = "") -> str:
    """Return a quantile of the durations; without requests there is none."""
    buckets = rate("request_duration_seconds_bucket")
    return f"histogram_quantile({q}, sum by ({labels}le) ({buckets})) >= 0"


def full(part: str, whole: str) -> str:
    """Return how much of a limit is in use, on the host where that is most."""
    return f"max({now(part)} / {now(whole)})"


def or_0(expression: str) -> str:
    """Return an expression that has a value where a counter was never increased."""
    return f"({expression} or vector(0))"


ACTIVE = 'state="active",'
FAILURES = 'status=~"5..",'
REQUESTS = f"sum({rate('requests_total')})"
FAILED = or_0(f"sum({rate('requests_total', FAILURES)})")
CONFIGURED = f"max_over_time({now('workers_configured')}[1h])"
# Of hosts that answer /metrics, and of those that do not.
MISSING = (
    or_0(f"sum(clamp_min({now('workers_configured')} - {now('workers')}, 0))")
    + " + "
    + or_0(f"sum({CONFIGURED} and on (job, instance) up{{{CHOSEN}}} == 0)")
)
CHECKOUTS = f"sum by (pool) ({rate('pool_checkouts_total')})"


class Page:
    """
    Place panels from left to right, below a row's title.

    :ivar dashboard: with what was placed so far.
    """

    def __init__(self) -> None:
        self.dashboard = (
            Dashboard("Greenline")
            .uid("greenline")
            .description("Is it healthy, and what limits it? Each panel says what is normal.")
            .tags(["greenline", "gunicorn", "python"])
            .time("now-1h", "now")
            .refresh("30s")
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
            .with_variable(_labels("job", "greenline_workers"))
            .with_variable(_labels("instance", 'greenline_workers{job=~"$job"}'))
            .annotation(
                AnnotationQuery()
                .name("Alerts of rules.yml")
                .datasource(SOURCE)
                .enable(True)
                .icon_color("red")
                .expr(f'ALERTS{{alertname=~"Greenline.+",alertstate="firing",{CHOSEN}}}')
            )
        )
        self._numbers = count(1)

    def row(self, title: str) -> None:
        """Begin a row."""
        self.dashboard.with_row(Row(title).id(next(self._numbers)))

    def verdict(
        self, title: str, unit: str, steps: Steps, what: str, queries: Queries, decimals: int = 0
    ) -> None:
        """Add a number, whose background says whether it is normal."""
        panel = (
            Stat()
            .color_mode(BigValueColorMode.BACKGROUND)
            .graph_mode(BigValueGraphMode.AREA)
            .orientation(VizOrientation.VERTICAL)
            .thresholds(_thresholds(steps))
            .decimals(decimals)
            .no_value("none")
            .override_by_name(RUN, [DynamicConfigValue("thresholds", _thresholds({}).build())])
        )
        self._add(panel, title, what, queries, unit, WIDTH // 8, STAT_HEIGHT)

    def bars(self, title: str, steps: Steps, what: str, queries: Queries, width: int) -> None:
        """Add a bar for each share of a limit."""
        panel = (
            BarGauge()
            .display_mode(BarGaugeDisplayMode.BASIC)
            .orientation(VizOrientation.HORIZONTAL)
            .thresholds(_thresholds(steps))
            .min(0)
            .max(1)
        )
        self._add(panel, title, what, queries, "percentunit", width, HEIGHT)

    def lines(
        self, title: str, unit: str, what: str, queries: Queries, width: int, stack: bool = False
    ) -> None:
        """Add a line for each series, or a stack of all."""
        tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI)
        panel = (
            TimeSeries()
            .tooltip(tooltip.sort(SortOrder.DESCENDING))
            .show_points(VisibilityMode.NEVER)
            .fill_opacity(60 if stack else 0)
            .min(0)
        )
        if stack:
            panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
        self._add(panel, title, what, queries, unit, width, HEIGHT)

    def table(self, title: str, what: str, query: str, width: int) -> None:
        """Add a table of labels, with the number of hosts that have them."""
        names = {"Value": "hosts"}
        options = {"excludeByName": {"Time": True}, "renameByName": names, "indexByName": {}}
        panel = Table().with_transformation(DataTransformerConfig("organize", options=options))
        target = _target("A", query, "").instant().format(PromQueryFormat.TABLE)
        self._place(panel.with_target(target), title, what, width, HEIGHT)

    def _add(
        self,
        panel: Stat | BarGauge | TimeSeries,
        title: str,
        what: str,
        queries: Queries,
        unit: str,
        width: int,
        height: int,
    ) -> None:
        panel.unit(unit)
        for letter, (legend, query) in zip("ABCDEFGH", queries.items(), strict=False):
            panel.with_target(_target(letter, query, legend))
        self._place(panel, title, what, width, height)

    def _place(
        self,
        panel: Stat | BarGauge | TimeSeries | Table,
        title: str,
        what: str,
        width: int,
        height: int,
    ) -> None:
        panel.id(next(self._numbers)).title(title).description(what).datasource(SOURCE)
        self.dashboard.with_panel(panel.span(width).height(height))


def _labels(name: str, series: str) -> QueryVariable:
    """Return a variable with the values that a label has in *series*."""
    every = VariableOption(text=["All"], value=["$__all"])
    return (
        QueryVariable(name)
        .label(name)
        .datasource(SOURCE)
        .query(f"label_values({series},{name})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .include_all(True)
        .all_value(".*")
        .multi(True)
        .current(every)
    )


def _target(letter: str, query: str, legend: str) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(query).legend_format(legend)
    )


def _thresholds(steps: Steps) -> ThresholdsConfig:
    found = [Threshold(None, "green"), *(Threshold(*step) for step in steps.items())]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(found)


def healthy(page: Page) -> None:
    """Add the verdicts; their limits are those of the alerts in deploy/prometheus/rules.yml."""
    page.row("Is it healthy?")
    page.verdict(
        "Requests", "reqps", {},
        "Requests that were answered in a second. A fall to 0: look at Workers, and at what stands "
        "before the service.",
        {"requests": or_0(REQUESTS)}, 1,
    )  # fmt: skip
    page.verdict(
        "Share of 5xx", "percentunit", {0.001: "orange", 0.01: "red"},
        "Normal: 0. Red: more than one in a hundred. 'Failures by route' shows which; 503 are "
        "refusals, 504 are deadlines, and of the others the log has the tracebacks.",
        {"5xx": or_0(f"{FAILED} / ({REQUESTS} > 0)")}, 2,
    )  # fmt: skip
    page.verdict(
        "p99", "s", {0.5: "orange", 2: "red"},
        "99 of 100 requests take less, by buckets that double: it is right within a factor of 2. "
        "The colours are for a service that answers in milliseconds: change them with yours. Else: "
        "'Where the time goes'.",
        {"p99": quantile(0.99)}, 1,
    )  # fmt: skip
    page.verdict(
        "In progress, of the limit", "percentunit", {1: "orange"},
        "On the host where it is most. 100 % is normal under load: more requests would not be "
        "served sooner. With requests that wait, it may be what limits: 'How full each limit is'.",
        {"in progress": full("requests_in_progress", "concurrency_limit")},
    )  # fmt: skip
    page.verdict(
        "Waiting", "short", {1: "orange"},
        "Requests that wait for their turn. Normal: 0, or a few for moments. Else something is "
        "full: 'How full each limit is'.",
        {"waiting": f"sum({now('requests_waiting')})"},
    )  # fmt: skip
    page.verdict(
        "Refused", "reqps", {0.001: "orange", 0.1: "red"},
        "Requests that are answered 503 in a second, as too many wait. Normal: 0. Else there is an "
        "overload: more workers or hosts if the CPU is full, a faster statement if a database is.",
        {"refused": f"sum({rate('refused_requests_total')})"}, 2,
    )  # fmt: skip
    page.verdict(
        "Hub lag", "s", {0.05: "orange", 0.1: "red"},
        "How late the slowest worker takes up its work. Normal: a few milliseconds. Above 100 ms "
        "(GREENLINE_BLOCKED_HUB_MS) code blocks the hub, and all requests of that worker wait: "
        "'Blocks of the hub' and the log name it. With a full CPU: more workers.",
        {"lag": f"max({now('worker_hub_lag_seconds')})"}, 1,
    )  # fmt: skip
    page.verdict(
        "Workers", "short", {1: "red"},
        "missing: fewer run than are configured, or their host does not answer /metrics. "
        "Normal: 0. Else a worker cannot boot, or is killed again and again: look in the log for "
        "'reload refused', 'failed to boot' and 'Perhaps out of memory?'.",
        {RUN: f"sum({now('workers')})", "missing": MISSING},
    )  # fmt: skip


def limits(page: Page) -> None:
    """Add what is full, what takes the time, and what is waited for."""
    page.row("What limits it?")
    page.bars(
        "How full each limit is", {0.7: "orange", 0.9: "red"},
        "On the host, or worker, where it is most. While requests wait, what is full limits. CPU: "
        "more workers or hosts, up to a worker for each core. Pool or slots: connections to the "
        "database; if 'Time that a connection is held' is longer than a statement, other work is "
        "done meanwhile, else the database is busy, and more connections make it slower. Requests "
        "alone: locks of the application, or GREENLINE_MAX_IN_PROGRESS. Connections of clients: "
        "worker_connections, or too many idle ones of the proxy.",
        {
            "requests in progress": full("requests_in_progress", "concurrency_limit"),
            "CPU of a worker": f"max({rate('worker_cpu_seconds_total')})",
            "connections of clients": full("connections", "connections_max"),
            "pool {{pool}}": (
                f"max by (pool) (sum without (state) ({now('pool_connections', ACTIVE)})"
                f" / {now('pool_connections_max')})"
            ),
            "slots {{pool}}": (
                f"max by (pool) ({now('slots_held_by_all')} / {now('slots_capacity')})"
            ),
        },
        8,
    )  # fmt: skip
    page.lines(
        "Where the time goes", "s",
        "The mean time of a request, by its parts. Normal: the database and the application. "
        "queued: for its turn. pool: for a connection, see what is full. connecting: connections "
        "do not last. postgres, mongodb: the statements. writing: clients that read slowly, which "
        "delay no others. application: Python's, or another service that it asks.",
        {
            "{{part}}": (
                f"sum by (part) ({rate('request_part_seconds_sum')})"
                f" / scalar(sum({rate('request_duration_seconds_count')}))"
            )
        },
        8, stack=True,
    )  # fmt: skip
    page.lines(
        "What requests wait for", "short",
        "Normal: 0. their turn: the concurrency limit is reached. A connection of a pool: all are "
        "in use. A slot: the host's connections to Postgres are in use, by other workers "
        "perhaps.",
        {
            "their turn": f"sum({now('requests_waiting')})",
            "a connection of {{pool}}": f"sum by (pool) ({now('pool_waiting')})",
            "a slot of Postgres (psycopg2)": f"sum({now('psycopg2_waiting')})",
            "a slot of {{pool}}": f"sum by (pool) ({now('slots_wanted')})",
        },
        8,
    )  # fmt: skip


def routes(page: Page) -> None:
    """Add what the routes do."""
    page.row("Routes")
    note = "The route is the rule of Flask, or greenline.route in the environ, else '-'. "
    bounds = "By buckets that double: right within a factor of 2."
    page.lines("p50 by route", "s", note + bounds, {"{{route}}": quantile(0.5, "route, ")}, 6)
    page.lines(
        "p99 by route", "s",
        note + bounds + " If one route alone is slow: its statements, or its view. If all are: "
        "'What limits it?'.",
        {"{{route}}": quantile(0.99, "route, ")}, 6,
    )  # fmt: skip
    page.lines(
        "Requests by route", "reqps", note + "What is asked, of which others may get slow.",
        {"{{route}}": f"sum by (route) ({rate('requests_total')})"}, 6,
    )  # fmt: skip
    page.lines(
        "Failures by route", "reqps",
        note + "Normal: none. 503: refused, or no connection. 504: the deadline. Others: the log "
        "has the traceback.",
        {
            "{{method}} {{route}} {{status}}": (
                f"sum by (method, route, status) ({rate('requests_total', FAILURES)})"
            )
        },
        6,
    )  # fmt: skip


def admission(page: Page) -> None:
    """Add the limits of a host."""
    page.row("Hosts")
    page.lines(
        "Concurrency limit", "short",
        "Of each host. The limit grows while requests wait and the CPU is idle, and falls to 8 a "
        "worker while it is busy.",
        {
            f"{HOST} in progress": now("requests_in_progress"),
            f"{HOST} waiting": now("requests_waiting"),
            f"{HOST} limit": now("concurrency_limit"),
        },
        6,
    )  # fmt: skip
    page.lines(
        "Connections of clients", "short",
        "Normal: below nine tenths of the limit, at which the connections idle longest are closed. "
        "Else: raise worker_connections, or lower the keepalive connections of the proxy.",
        {
            f"{HOST} open": now("connections"),
            f"{HOST} idle": now("connections_idle"),
            f"{HOST} worker_connections": now("connections_max"),
            f"{HOST} handlers": now("handlers"),
            f"{HOST} idle handlers": now("handlers_idle"),
        },
        6,
    )  # fmt: skip
    page.lines(
        "Refusals, deadlines, disconnects", "reqps",
        "Normal: 0, and a few clients that disconnect. Refusals: an overload. Deadlines: answered "
        "504 after REQUEST_TIMEOUT, and the log says what was waited for. Many disconnects: "
        "answers are slower than the patience of the clients.",
        {
            f"{HOST} refused: {{{{reason}}}}": rate("refused_requests_total"),
            f"{HOST} deadlines": rate("deadlines_total"),
            f"{HOST} disconnects": rate("client_disconnects_total"),
        },
        6,
    )  # fmt: skip
    page.lines(
        "Blocks of the hub", "short",
        "Normal: 0 a minute. While code blocks the hub, its worker serves no other request. Those "
        "that are in the log, one in ten seconds, have the function; docs/hosting.md says what to "
        "do about it.",
        {
            f"{HOST} all": f"60 * {rate('hub_blocks_total')}",
            "{{function}}": f"60 * sum by (function) ({rate('hub_blocks_logged_total')})",
        },
        6,
    )  # fmt: skip


def pools(page: Page) -> None:
    """Add the pools, and the slots of a host."""
    page.row("Pools and slots")
    page.lines(
        "Connections of the pools", "short",
        "Normal: active below max. All active and many that wait: the database is the limit. Idle "
        "ones are given to workers that wait.",
        {
            "{{pool}} {{state}}": f"sum by (pool, state) ({now('pool_connections')})",
            "{{pool}} max": f"sum by (pool) ({now('pool_connections_max')})",
        },
        6,
    )  # fmt: skip
    page.lines(
        "Wait for a connection, a checkout", "s",
        "The mean of all checkouts, those that did not wait included. Normal: 0. Else: see what is "
        "full, and for how long a connection is held.",
        {"{{pool}}": f"sum by (pool) ({rate('pool_wait_seconds_total')}) / {CHECKOUTS}"}, 6,
    )  # fmt: skip
    page.lines(
        "Checkouts that wait", "percentunit",
        "Normal: a few of a hundred.",
        {"{{pool}}": f"sum by (pool) ({rate('pool_checkouts_queued_total')}) / {CHECKOUTS}"}, 6,
    )  # fmt: skip
    page.lines(
        "Time that a connection is held", "s",
        "The mean of a checkout. Normal: what a statement takes. Longer: other work stands in the "
        "block that holds the connection.",
        {"{{pool}}": f"sum by (pool) ({rate('pool_usage_seconds_total')}) / {CHECKOUTS}"}, 6,
    )  # fmt: skip
    page.lines(
        "Slots of the host", "short",
        "The connections that a host may hold to a server, for all its workers. held: by this "
        "service; by all: by every process of the host. Normal: below the capacity. orphans: of "
        "workers that were killed, until the server has ended them; more than a moment of them "
        "says that it does not.",
        {
            f"{HOST} {{{{pool}}}} held": now("slots_held"),
            f"{HOST} {{{{pool}}}} held by all": now("slots_held_by_all"),
            f"{HOST} {{{{pool}}}} orphans": now("slots_orphans"),
            # Of the host, as each of its services reports it: the largest and not the sum.
            "{{pool}} capacity": f"max by (pool) ({now('slots_capacity')})",
        },
        6,
    )  # fmt: skip
    page.lines(
        "New connections", "cps",
        "Attempts to connect. Normal: few, and more after a start. Else connections do not last: "
        "see 'Connections that fail'.",
        {"{{pool}}": f"sum by (pool) ({rate('pool_connects_total')})"}, 6,
    )  # fmt: skip
    page.lines(
        "Time to connect", "s",
        "The mean of the attempts that succeeded. Normal: milliseconds. Longer: the server is "
        "busy, or far away.",
        {
            "{{pool}}": (
                f"sum by (pool) ({rate('pool_connect_seconds_total')}) / sum by (pool) "
                f"({rate('pool_connects_total')} - {rate('pool_connect_errors_total')})"
            )
        },
        6,
    )  # fmt: skip
    page.lines(
        "Connections that fail", "cps",
        "Normal: 0. no connection: requests got none, by a timeout, a full queue, or no server. "
        "connect: the server refuses, or is away. bad returns: came back broken, or in a state "
        "that cannot be reset. lost: the server, or a device between, closes idle ones. unpooled: "
        "open now, by psycopg2.connect beside the pool of GREENLINE_POOL.",
        {
            "{{pool}} no connection": f"sum by (pool) ({rate('pool_checkout_errors_total')})",
            "{{pool}} connect": f"sum by (pool) ({rate('pool_connect_errors_total')})",
            "{{pool}} bad returns": f"sum by (pool) ({rate('pool_bad_returns_total')})",
            "{{pool}} lost": f"sum by (pool) ({rate('pool_lost_connections_total')})",
            "unpooled": f"sum({now('psycopg2_unpooled')})",
        },
        6,
    )  # fmt: skip


def caches(page: Page) -> None:
    """Add what the caches of applications do."""
    page.row("Caches")
    page.lines(
        "Looks into a cache", "cps",
        "Normal: most are hits. Many loads and few hits: the cache is too small, or its values are "
        "asked for once. waits: callers that waited for the load of another one.",
        {
            "{{cache}} hits": f"sum by (cache) ({rate('cache_hits_total')})",
            "{{cache}} stale": f"sum by (cache) ({rate('cache_stale_hits_total')})",
            "{{cache}} waits": f"sum by (cache) ({rate('cache_waits_total')})",
            "{{cache}} loads": f"sum by (cache) ({rate('cache_loads_total')})",
            "{{cache}} shared": f"sum by (cache) ({rate('cache_shared_loads_total')})",
        },
        8,
    )  # fmt: skip
    page.lines(
        "What leaves a cache", "cps",
        "evictions: values that made room; many of them: the cache is too small. invalidations: by "
        "writes. failures: loads that raised an error. too large: values that are never kept.",
        {
            "{{cache}} evictions": f"sum by (cache) ({rate('cache_evictions_total')})",
            "{{cache}} invalidations": f"sum by (cache) ({rate('cache_invalidations_total')})",
            "{{cache}} failures": f"sum by (cache) ({rate('cache_load_failures_total')})",
            "{{cache}} too large": f"sum by (cache) ({rate('cache_too_large_total')})",
        },
        8,
    )  # fmt: skip
    page.lines(
        "Memory of the caches", "bytes",
        "Of all workers, which have a cache each. Normal: below the line of the bound.",
        {
            "{{cache}}": f"sum by (cache) ({now('cache_bytes')})",
            "{{cache}} at most": f"sum by (cache) ({now('cache_bytes_max')})",
        },
        4,
    )  # fmt: skip
    page.lines(
        "Values in the caches", "short",
        "Of all workers. Normal: flat after a while.",
        {"{{cache}}": f"sum by (cache) ({now('cache_values')})"},
        4,
    )  # fmt: skip


def workers(page: Page) -> None:
    """Add each worker, and what runs in it."""
    page.row("Each worker")
    page.lines(
        "CPU of each worker", "percentunit",
        "A worker is one thread: 100 % is all that it can use. All near it: more workers or hosts, "
        "up to a worker for each core. One alone: a request that computes.",
        {WORKER: rate("worker_cpu_seconds_total")}, 6,
    )  # fmt: skip
    page.lines(
        "Hub lag of each worker", "s",
        "How late the hub was when it was last asked, ten times a second. Normal: a few "
        "milliseconds.",
        {WORKER: now("worker_hub_lag_seconds")}, 6,
    )  # fmt: skip
    page.lines(
        "Memory of each worker", "bytes",
        "Resident memory. Normal: flat after a while. One that only grows is a leak of the "
        "application, which max_requests hides.",
        {WORKER: now("worker_resident_memory_bytes")}, 6,
    )  # fmt: skip
    page.lines(
        "Workers by host", "short",
        "That run. Normal: as many as the setting says; twice as many for the moment of a reload.",
        {HOST: now("workers")}, 6,
    )  # fmt: skip
    page.table(
        "Versions",
        "Normal: one row, and two while a deployment rolls.",
        f"count by (version, python, gunicorn, gevent) ({now('build_info')})", 12,
    )  # fmt: skip
    page.table(
        "Settings",
        "Those that are set, and on how many hosts: two values of one should be on purpose.",
        f"count by (name, value) ({now('setting_info')})", 12,
    )  # fmt: skip


def made() -> str:
    """Return the dashboard as Grafana imports it."""
    page = Page()
    for add in (healthy, limits, routes, admission, pools, caches, workers):
        add(page)
    return json.dumps(page.dashboard.build(), cls=JSONEncoder, indent=2) + "\n"


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(made(), encoding="utf-8")
    print(PATH)
