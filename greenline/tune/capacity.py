"""
Compute how many hosts a load needs, and what binds first: arithmetic without I/O.

A host is a machine or a pod. Its workers are as many as its processors and its memory allow; the
hosts as many as the load needs; and the connections of all of them are held against Postgres by the
plan that the workers follow (greenline/budget/plan.py).
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from greenline import settings
from greenline.budget.plan import (
    HEAD_ROOM,
    POSTGRES_EXTRA_A_WORKER,
    Deployment,
    Plan,
    PostgresFacts,
    postgres_plan,
)
from greenline.errors import ConfigError
from greenline.tune import usl
from greenline.tune.results import CORES_FOR_TWO, Fit, Result, Step, SweepName

# Of the rate at which the objective just holds: room for bursts, and for a host that is lost.
PLANNED = 0.7
# How many times the connections that are in use at once on average (Little's law) a pool has.
SPARE = 2
# A worker that uses less of its processor at the knee waits for something else.
BUSY = 0.85
# Two rates that differ by less are the same, and rounds that differ by more say nothing.
SAME, MAX_SPREAD = 0.05, 0.2
# gunicorn's arbiter and the process of GREENLINE_OPS_BIND.
ARBITER_MIB = 100
MEMORY_MARGIN = 1.25
TIMES = range(1, 11)
# Assumed without a result.
CPU_S, POSTGRES_S, MEMORY_MIB, CORES, HOST_MIB = 0.010, 0.010, 100.0, 2, 2_048
MAX_CONNECTIONS = 100  # PostgreSQL's default


@dataclass(frozen=True)
class Application:
    """
    What a worker of the application does and needs.

    :param rate: requests a second of one worker at the knee, float.
    :param workers: how many were measured together, int; 0: none.
    :param workers_a_core: how many a processor of a host has, float.
    :param postgres_s: how long a request waits for Postgres, float seconds; 0 if unknown.
    :param mongodb_s: how long it waits for MongoDB, float seconds.
    :param response_s: mean time of an answer, float seconds.
    :param memory_mib: of one worker under load, float.
    :param pool: connections of its pool at the knee, int.
    :param fit: of the workers' sweep; None if there is none.
    :param max_rate: beyond it Postgres or what else the application waits for binds, requests a
        second, float; infinite if that was not seen.
    :param proven_rate: the highest rate that was measured, float; 0: none was.
    :param notes: where the figures come from, a sentence each.
    """

    rate: float
    workers: int
    workers_a_core: float
    postgres_s: float
    mongodb_s: float
    response_s: float
    memory_mib: float
    pool: int
    fit: Fit | None
    max_rate: float
    proven_rate: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Host:
    """
    What a host has.

    :param cores: processors, float.
    :param memory_mib: int.
    """

    cores: float
    memory_mib: int


class Row(NamedTuple):
    """
    What a load needs.

    :param rate: requests a second, float.
    :param hosts: int.
    :param workers: of each host, int.
    :param pool: connections of a worker's pool, int.
    :param min_pool: connections that a worker needs at this load, int.
    :param connections: at Postgres while a deploy rolls, int.
    :param in_use: connections that are in use at once on average, float; 0 if unknown.
    :param memory_mib: of all hosts' workers, float.
    :param binds: what binds first, str.
    :param fits: whether Postgres allows the pools, and does the rate as far as it is known; bool.
    :param plan: the budget of a host; None if not even the reserved connections fit.
    """

    rate: float
    hosts: int
    workers: int
    pool: int
    min_pool: int
    connections: int
    in_use: float
    memory_mib: float
    binds: str
    fits: bool
    plan: Plan | None


class Bouncer(NamedTuple):
    """
    A pgbouncer in transaction mode.

    :param pool_size: its connections to Postgres, int.
    :param max_client_conn: connections of the workers, int.
    :param fits: whether Postgres allows the pool, bool.
    """

    pool_size: int
    max_client_conn: int
    fits: bool


ASSUMED = Application(
    rate=1 / CPU_S,
    workers=0,
    workers_a_core=1.0,
    postgres_s=POSTGRES_S,
    mongodb_s=0.0,
    response_s=CPU_S + POSTGRES_S,
    memory_mib=MEMORY_MIB,
    pool=math.ceil(SPARE * POSTGRES_S / CPU_S),
    fit=None,
    max_rate=math.inf,
    proven_rate=0.0,
    notes=(
        f"Assumed: a request takes {1_000 * CPU_S:.0f} ms of a processor, so a worker answers "
        f"{1 / CPU_S:.0f} a second.",
        f"Assumed: it waits {1_000 * POSTGRES_S:.0f} ms for Postgres, so a worker needs "
        f"{math.ceil(SPARE * POSTGRES_S / CPU_S)} connections.",
        f"Assumed: a worker takes {MEMORY_MIB:.0f} MiB.",
        "greenline tune measures them; its --json FILE is the argument of this command.",
    ),
)


def application(result: Result) -> Application:
    """
    Return what *result* says about a worker.

    :raises ConfigError: it has no rate at which the objective holds, no number of workers, or a
        proof that has missed.
    """
    sweep = result.sweep("rate")
    knee = sweep.knee(result.objective) if sweep else None
    if knee is None or not knee.good_rate:
        raise ConfigError("there is no rate at which the objective holds: nothing to compute from")
    total, workers = _verified(result, knee)
    machine, shares = result.machine, knee.shares
    mean_s, postgres_s, mongodb_s = knee.latencies.p50_s or 0.0, 0.0, 0.0
    pool, note = _pool(result, knee, total / workers, workers)
    if shares is not None:
        mean_s = sum(float(getattr(shares, name)) for name in shares.__struct_fields__)
        mongodb_s = shares.mongodb_s
        # With a larger pool than it needs a request waits in Postgres for others, too.
        of_pool = _step(result, "pool", pool)
        postgres_s = ((of_pool and of_pool.shares) or shares).postgres_s
    memory = result.recommended("memory_mib")
    if not memory and not knee.memory_mib:
        raise ConfigError(
            "the workers were not seen, as those of --url on another host are not: nothing says "
            "what they need"
        )
    # Where the load generator has had a core of its own, the workers have had the others.
    cores = machine.cores - (machine.cores >= CORES_FOR_TWO)
    steps = [step for one in result.sweeps if one.name != "idle" for step in one.steps]
    return Application(
        rate=total / workers,
        workers=workers,
        workers_a_core=workers / cores,
        postgres_s=postgres_s,
        mongodb_s=mongodb_s,
        response_s=mean_s,
        memory_mib=memory.value if memory else MEMORY_MARGIN * knee.memory_mib,
        pool=pool,
        fit=_fit(result, cores),
        max_rate=_plateau(result, knee, workers),
        proven_rate=max(step.good_rate for step in steps),
        notes=(
            f"Measured: {total:.1f} requests a second by {_count(workers, 'worker')} on "
            f"{_count(cores, 'core')}, p99 within {1_000 * result.objective.p99_s:g} ms.",
            note,
        ),
    )


def _verified(result: Result, knee: Step) -> tuple[float, int]:
    """Return the rate at the objective, and the number of workers that have it together."""
    if result.verification is not None and not result.verification.met:
        raise ConfigError("the proof missed the objective at each rate: nothing to compute from")
    chosen = result.recommended("workers")
    if chosen is None:
        if settings.WORKERS.name not in result.settings:
            raise ConfigError(
                "it does not say how many workers there were: of a server of --url they are known "
                "if it is the only gunicorn of this host that runs Greenline's worker"
            )
        return knee.good_rate, int(result.settings[settings.WORKERS.name])
    workers = int(chosen.value)
    if result.verification is not None:
        return result.verification.measured_rate, workers
    # The knee may be of another number of workers; the sweep has this one.
    step = _step(result, "workers", workers)
    return min(knee.good_rate, step.good_rate) if step else knee.good_rate, workers


def _step(result: Result, name: SweepName, setting: float) -> Step | None:
    """Return the step of a sweep that has the setting, None if there is none."""
    sweep = result.sweep(name)
    return next((one for one in sweep.steps if one.setting == setting), None) if sweep else None


def _pool(result: Result, knee: Step, rate: float, workers: int) -> tuple[int, str]:
    """Return the size of a worker's pool, and a sentence about it; *rate* is a worker's."""
    pool = result.recommended("pool")
    if pool:
        size = int(pool.value)
        return size, f"Measured: a pool of {size} is enough for a worker."
    if knee.connections:
        # An application that connects by itself opens more than it has in use.
        size = math.ceil(knee.connections / workers)
        return size, f"Not measured: the pool. A worker had {_count(size, 'connection')} at most."
    if knee.shares:
        size = max(1, math.ceil(SPARE * rate * knee.shares.postgres_s))
        return size, f"Not measured: the pool. {SPARE} times what Little's law gives: {size}."
    return 1, "Not measured: the pool. No connection was seen: 1 is assumed."


def _fit(result: Result, cores: int) -> Fit | None:
    """Return the fit of the workers, which predicts only if each had a core of its own."""
    fit = next((fit for fit in result.fits if fit.of == "workers"), None)
    sweep = result.sweep("workers")
    if fit and sweep and max(one.setting for one in sweep.steps) > cores:
        # They competed for processors that a larger host has more of.
        note = f"the sweep had more workers than its {_count(cores, 'core')}"
        return msgspec.structs.replace(fit, is_usable=False, note=note)
    return fit


def _plateau(result: Result, knee: Step, workers: int) -> float:
    """Return the rate that more connections have not raised while the workers were not busy."""
    pools = result.sweep("pool")
    processors = min(workers, result.machine.cores)
    if pools is None or len(pools.steps) < 2 or knee.cpu_of_workers >= BUSY * processors:
        return math.inf
    *_, before, last = sorted(pools.steps, key=lambda step: step.setting)
    if any(step.generator_limited or (step.spread or 0) > MAX_SPREAD for step in (before, last)):
        return math.inf
    # Where all that was offered was answered, the rate is the load's, not the database's.
    if last.keeps_up:
        return math.inf
    best = max(step.good_rate for step in pools.steps)
    return best if last.good_rate <= (1 + SAME) * before.good_rate else math.inf


def workers_of(app: Application, host: Host) -> tuple[int, str]:
    """
    Return the workers of a host, and what binds their number.

    :raises ConfigError: its memory is too small for one.
    """
    by_memory = int((host.memory_mib - ARBITER_MIB) // app.memory_mib)
    if by_memory < 1:
        raise ConfigError(
            f"a worker takes {app.memory_mib:.0f} MiB and gunicorn's arbiter {ARBITER_MIB}: a host "
            f"of {host.memory_mib} MiB has no room for one"
        )
    # By floating point 11 x (15 / 11) is less than 15.
    by_cores = max(1, int(host.cores * app.workers_a_core + 1e-9))
    return (by_memory, "memory") if by_memory < by_cores else (by_cores, "CPU")


def rate_of(app: Application, host: Host, workers: int) -> tuple[float, str]:
    """Return the rate of a host at the knee, and a sentence where it was not measured."""
    share = host.cores * app.workers_a_core
    if share < 1:
        return share * app.rate, (
            f"Assumed: a worker on {host.cores:g} cores answers {share:.2g} times what it does on "
            f"{1 / app.workers_a_core:.3g}."
        )
    if workers <= app.workers or not app.workers:
        return workers * app.rate, ""
    predicted = usl.predicted(app.fit, workers) if app.fit else None
    measured = usl.predicted(app.fit, app.workers) if app.fit else None
    if predicted and measured:
        # The fit is of the best rates, the application's is that at the objective.
        return app.rate * app.workers * predicted / measured, (
            f"Predicted: {workers} workers answer {predicted / measured:.3g} times what "
            f"{app.workers} do, by the law that was fitted."
        )
    why = f" ({app.fit.note})" if app.fit and app.fit.note else ""
    return workers * app.rate, (
        f"Assumed: {workers} workers answer {workers / app.workers:.3g} times what {app.workers} "
        f"do; no fit says so{why}."
    )


def row(app: Application, host: Host, rate: float, max_connections: int, surge: int) -> Row:
    """
    Return what *rate* needs.

    :param app: a worker.
    :param host: a host.
    :param rate: requests a second, float.
    :param max_connections: of Postgres, int.
    :param surge: hosts more while a deploy rolls, int.
    :raises ConfigError: a host has no room for a worker.
    """
    workers, binds = workers_of(app, host)
    each, _ = rate_of(app, host, workers)
    hosts = max(1, math.ceil(rate / (PLANNED * each)))
    in_use = rate * app.postgres_s
    # At this load a worker may need less than at the knee, where the pool was measured.
    min_pool = app.pool
    if in_use:
        min_pool = min(app.pool, math.ceil(SPARE * in_use / (hosts * workers)))
    plan = _plan(app.pool, Deployment(workers, hosts, surge), max_connections)
    pool = max(min_pool, plan.worker if plan else 0)
    fits = plan is not None and plan.worker >= min_pool
    if not fits:
        binds = "connections"
    elif rate > app.max_rate:
        binds, fits = "the database", False
    return Row(
        rate=rate,
        hosts=hosts,
        workers=workers,
        pool=pool,
        min_pool=min_pool,
        connections=(hosts + surge) * workers * (pool + POSTGRES_EXTRA_A_WORKER),
        in_use=in_use,
        memory_mib=hosts * (workers * app.memory_mib + ARBITER_MIB),
        binds=binds,
        fits=fits,
        plan=plan,
    )


def _plan(pool: int, deployment: Deployment, max_connections: int) -> Plan | None:
    """Return the budget for pools of that size; None if not even the reserved ones fit."""
    try:
        return postgres_plan(PostgresFacts(max_connections), deployment, pool_size=pool)
    except ConfigError:
        return None


def rows(
    app: Application, host: Host, rate: float, max_connections: int, surge: int
) -> Iterator[tuple[int, Row]]:
    """Yield what 1 to 10 times *rate* needs; the parameters are those of :func:`row`."""
    for times in TIMES:
        yield times, row(app, host, times * rate, max_connections, surge)


def needed_for(pool: int, deployment: Deployment) -> int:
    """
    Return the ``max_connections`` with which pools of a size fit.

    :param pool: connections of a worker, int.
    :param deployment: the hosts and workers.
    """

    def fits(max_connections: int) -> bool:
        plan = _plan(pool, deployment, max_connections)
        return plan is not None and plan.worker >= pool

    # Four are reserved for each worker, two of them for a reload, one is in the pool.
    hosts = deployment.hosts + deployment.surge_hosts
    enough = hosts * deployment.workers * (pool + 3) + 2 * HEAD_ROOM + 1
    return bisect_left(range(enough), True, key=fits)


def needed_connections(needed: Row, surge: int) -> int:
    """Return the ``max_connections`` with which the pools that *needed* needs fit."""
    return needed_for(needed.min_pool, Deployment(needed.workers, needed.hosts, surge))


def bouncer(needed: Row, max_connections: int) -> Bouncer:
    """Return the pgbouncer that would let *needed* do with the connections that are in use."""
    size = max(1, math.ceil(SPARE * needed.in_use))
    room = max_connections - PostgresFacts(0).superuser_reserved_connections - HEAD_ROOM
    return Bouncer(size, needed.connections, size <= room)


def explained(app: Application, host: Host, needed: Row, surge: int, wanted: str) -> Sequence[str]:
    """Return the sums of *needed* line by line; *wanted* says where its rate comes from."""
    workers, binds = workers_of(app, host)
    each, note = rate_of(app, host, workers)
    by_memory = int((host.memory_mib - ARBITER_MIB) // app.memory_mib)
    lines = [
        wanted,
        f"workers: {host.cores:g} cores x {app.workers_a_core:.3g} a core, at least 1; at most "
        f"({host.memory_mib} - {ARBITER_MIB}) MiB / {app.memory_mib:.0f} MiB = {by_memory}; "
        f"so {workers}, {binds} binds",
        f"a host: {each:.1f} requests a second at the knee, planned {PLANNED:.0%} of it: "
        f"{PLANNED * each:.1f}",
        f"hosts: {needed.rate:.1f} / {PLANNED * each:.1f}, rounded up = {needed.hosts}",
        f"connections: ({_count(needed.hosts, 'host')} + {surge} while a deploy rolls) x "
        f"{_count(workers, 'worker')} x (pool {needed.pool} + control {POSTGRES_EXTRA_A_WORKER}) = "
        f"{needed.connections}",
        f"memory: {needed.hosts} x ({workers} x {app.memory_mib:.0f} MiB + {ARBITER_MIB} MiB) = "
        f"{needed.memory_mib:.0f} MiB; a reload with HUP has two generations of workers",
    ]
    if needed.in_use:
        lines.append(
            f"in use at once (Little's law): {needed.rate:.1f} x {1_000 * app.postgres_s:.3g} ms "
            f"in Postgres = {needed.in_use:.1f}"
        )
    if app.mongodb_s:
        lines.append(
            f"in use at once at MongoDB: {needed.rate:.1f} x {1_000 * app.mongodb_s:.3g} ms = "
            f"{needed.rate * app.mongodb_s:.1f}; each worker has 5 more (docs/budget.md)"
        )
    return [*lines, note] if note else lines


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"
