"""Choose settings from the steps that were measured, and say why. Arithmetic only."""

import math
from collections.abc import Sequence
from statistics import linear_regression

import msgspec

from greenline import settings
from greenline.tune.results import Recommendation, Step

ENOUGH = 0.95  # of the best rate
WAITS = 0.5  # of a request's time: it waits more than it computes
BUSY = 0.9  # of the processors
HEAD_ROOM_CONNECTIONS = 2.0  # times the requests in progress at the knee
HEAD_ROOM_MEMORY = 1.25
MIN_KEEPALIVE = 16
SPARE_CONNECTIONS = 100  # health checks, and clients that connect meanwhile


def best(steps: Sequence[Step]) -> Step:
    """Return the step with the highest good rate."""
    return max(steps, key=lambda step: step.good_rate)


def noise(*steps: Step) -> float:
    """Return by how much the good rates of *steps* vary between rounds, in answers a second."""
    # Half of the range of each, on average.
    return sum((max(one.rounds) - min(one.rounds)) / 2 for one in steps) / len(steps)


def smallest(steps: Sequence[Step]) -> Step:
    """Return the step of the smallest setting that is as good as the best, within the noise."""
    top = best(steps)
    return min(
        (
            step
            for step in steps
            if top.good_rate - step.good_rate
            <= max((1 - ENOUGH) * top.good_rate, 0.0 if step is top else noise(step, top))
        ),
        key=lambda step: step.setting,
    )


def noise_note(chosen: Step, top: Step, taken: str = "the smaller number") -> str:
    """Return a sentence where the noise is larger than the difference; empty: it is not."""
    difference = top.good_rate - chosen.good_rate
    if chosen is top or difference <= (1 - ENOUGH) * top.good_rate:
        return ""
    return (
        f" The rounds vary by {noise(chosen, top):.0f}/s, which is more than the difference, so "
        f"{taken} is taken."
    )


def _beside(chosen: Step, top: Step) -> str:
    if chosen is top:
        return ", the best"
    return f", and {top.setting:.0f}, the best, {top.good_rate:.0f}/s"


def in_progress(knee: Step) -> float:
    """Return the requests in progress at the knee, by Little's law, of all workers."""
    # The mean is what the law has; the median stands in for it where it is not known.
    mean_s = _mean_s(knee)
    return knee.answered_rate * mean_s


def _mean_s(step: Step) -> float:
    shares = step.shares
    if shares is None:
        return step.latencies.p50_s or 0.0
    return sum(msgspec.structs.astuple(shares), 0.0)


def waits(knee: Step, cores: int) -> bool:
    """Return whether requests wait for others more than for a processor, so more workers help."""
    if knee.shares is None:
        return False
    own_s = knee.shares.application_s + knee.shares.hub_s
    return own_s < WAITS * _mean_s(knee) and knee.cpu_of_workers < BUSY * cores


def binding(step: Step, cores: int) -> str:
    """Return what the largest part of the time goes to, as a sentence."""
    if step.cpu_of_workers >= BUSY * cores:
        return f"The processors bind: the workers use {step.cpu_of_workers:.1f} of {cores}."
    if step.shares is None:
        return "What binds is not known: the workers are not seen."
    texts = {
        "queued_s": "waiting for its turn",
        "pool_s": "waiting for a connection of the pool",
        "connecting_s": "connecting to Postgres",
        "postgres_s": "Postgres",
        "mongodb_s": "MongoDB",
        "writing_s": "writing to the client",
        "hub_s": "waiting for the hub, which other requests keep busy",
        "application_s": "the application itself",
    }
    name = max(texts, key=lambda each: getattr(step.shares, each))
    share = getattr(step.shares, name) / max(_mean_s(step), 1e-9)
    return (
        f"The workers use {step.cpu_of_workers:.1f} of {cores} processors, and {share:.0%} of a "
        f"request's time is {texts[name]}."
    )


def pool(steps: Sequence[Step], cores: int) -> Recommendation:
    """Recommend the smallest pool that gives 95 % of the best rate."""
    chosen, top = smallest(steps), best(steps)
    size = int(chosen.setting)
    larger = [step for step in steps if step.setting > chosen.setting]
    return Recommendation(
        name="pool",
        value=size,
        unit="connections of a worker",
        # Without it a psycopg2.connect() of the application has no pool.
        environment={
            settings.POSTGRES_POOL_SIZE.name: str(size),
            **({settings.POOL.name: "1"} if settings.POOL.read() else {}),
        },
        measured=f"A pool of {size} gives {chosen.good_rate:.0f}/s{_beside(chosen, top)}."
        f"{noise_note(chosen, top)}",
        binds=binding(chosen, cores),
        next=f"With {larger[0].setting:.0f}, {larger[0].good_rate:.0f}/s: more connections only "
        "wait in Postgres instead of in the worker."
        if larger
        else "It is the largest pool that was tried: a larger one may give more.",
        spread=chosen.spread,
    )


def workers(steps: Sequence[Step], cores: int) -> Recommendation:
    """Recommend the fewest workers that give 95 % of the best rate."""
    chosen, top = smallest(steps), best(steps)
    count = int(chosen.setting)
    more = [step for step in steps if step.setting > chosen.setting]
    return Recommendation(
        name="workers",
        value=count,
        unit="workers",
        environment={settings.WORKERS.name: str(count)},
        measured=f"On {cores} processors {count} {'gives' if count == 1 else 'give'} "
        f"{chosen.good_rate:.0f}/s{_beside(chosen, top)}.{noise_note(chosen, top)}",
        binds=binding(chosen, cores),
        next=f"{more[0].setting:.0f} give {more[0].good_rate:.0f}/s, and each has a pool and "
        f"{more[0].memory_mib:.0f} MiB of its own."
        if more
        else "More were not tried.",
        spread=chosen.spread,
    )


def limit(
    fixed: Sequence[Step], auto: Step | None, knee: Step, count: int, max_wait_s: float
) -> Recommendation:
    """
    Recommend the smallest limit that is as good as the best, or ``auto`` if that is.

    :param fixed: the steps of numbers.
    :param auto: the step in which the worker found the number, which is its setting.
    :param knee: the step of the highest rate that meets the objective, roughly.
    :param count: workers that it was measured with, int.
    :param max_wait_s: seconds that a request waited for its turn, float.
    """
    steps = [*fixed, *([auto] if auto is not None else [])]
    top, chosen = best(steps), smallest(fixed) if fixed else steps[0]
    if auto is not None and (
        top is auto
        or top.good_rate - auto.good_rate <= max((1 - ENOUGH) * top.good_rate, noise(auto, top))
    ):
        chosen = auto
    is_auto = chosen is auto
    little = in_progress(knee) / count
    found = f"`auto` settles at {auto.setting:.0f}" if auto is not None else "`auto` was not tried"
    return Recommendation(
        name="max_in_progress",
        value=chosen.setting,
        unit="requests of a worker",
        environment={
            settings.MAX_IN_PROGRESS.name: "auto" if is_auto else f"{chosen.setting:.0f}",
            settings.MAX_WAIT.name: f"{max_wait_s:g}",
        },
        measured=f"At the rough knee a worker has {little:.1f} requests in progress (Little's law),"
        f" and {found}. Offered {chosen.offered_rate:.0f}/s, "
        f"{'auto' if is_auto else f'{chosen.setting:.0f}'} keeps {chosen.good_rate:.0f}/s good"
        f"{_beside(chosen, top)}."
        f"{noise_note(chosen, top, 'auto' if is_auto else 'the smaller number')}",
        binds=f"Beyond it a request waits {max_wait_s:g} s at most and is a 503 then: its answer "
        "would be too late.",
        next="The number follows the database and the release by itself."
        if is_auto
        else "It has to be measured anew when the database or the application changes.",
        spread=chosen.spread,
    )


def keepalive(knee: Step) -> Recommendation:
    """Recommend how many idle connections nginx keeps."""
    little = in_progress(knee)
    kept = max(MIN_KEEPALIVE, math.ceil(little))
    return Recommendation(
        name="keepalive",
        value=kept,
        unit="idle connections of an nginx process",
        environment={},
        measured=f"At the knee {little:.1f} requests are in progress at once (Little's law: "
        f"{knee.answered_rate:.0f}/s of {_mean_s(knee) * 1e3:.1f} ms each).",
        binds=f"With fewer kept, nginx connects anew for a part of the requests; it is at least "
        f"{MIN_KEEPALIVE}.",
        next="Each idle connection is one of worker_connections, and memory.",
        spread=knee.spread,
    )


def worker_connections(
    knee: Step, kept: float, proxies: int, count: int, cost_kib: float | None
) -> Recommendation:
    """
    Recommend ``worker_connections``.

    :param knee: the step of the highest rate that meets the objective.
    :param kept: idle connections that a process of the proxy keeps, float.
    :param proxies: its processes, int.
    :param count: workers, int.
    :param cost_kib: what an idle socket takes, float; None: not measured.
    """
    little = in_progress(knee) / count
    active = math.ceil(HEAD_ROOM_CONNECTIONS * little)
    # Any of the workers may have all that the proxy keeps idle.
    number = math.ceil((kept * proxies + active + SPARE_CONNECTIONS) / 50) * 50
    cost = "not measured" if cost_kib is None else f"{cost_kib:.1f} KiB"
    return Recommendation(
        name="worker_connections",
        value=number,
        unit="connections of a worker",
        environment={},
        measured=f"{kept * proxies:.0f} that nginx keeps idle ({proxies} x {kept:.0f}), {active} "
        f"for {little:.1f} requests in progress at the knee, twice, and {SPARE_CONNECTIONS} to "
        f"spare; an idle socket costs {cost}.",
        binds="A connection beyond it waits in the queue of the listener, health checks too.",
        next="A larger number costs nothing until clients connect: the memory is that of the "
        "sockets that are open.",
        spread=knee.spread,
    )


def idle_cost_kib(steps: Sequence[Step]) -> float:
    """Return what an idle socket takes, in KiB: the slope of the memory over their number."""
    if len(steps) < 2:
        return 0.0
    slope, _ = linear_regression([one.setting for one in steps], [one.memory_mib for one in steps])
    return max(slope * 1024, 0.0)


def memory(knee: Step, connections: float, cost_kib: float) -> Recommendation:
    """Recommend the memory of a worker: that at the knee and of all its sockets."""
    sockets_mib = connections * cost_kib / 1024
    value = math.ceil(HEAD_ROOM_MEMORY * knee.memory_mib + sockets_mib)
    return Recommendation(
        name="memory_mib",
        value=value,
        unit="MiB of a worker",
        environment={},
        measured=f"The largest worker had {knee.memory_mib:.0f} MiB at the knee, and "
        f"{connections:.0f} idle sockets take {sockets_mib:.1f} MiB; a quarter more to spare.",
        binds="The memory is that of the code and of the requests in progress.",
        next="A container with less is killed under load: its limit is for all workers and the "
        "arbiter.",
        spread=knee.spread,
    )


def max_connections(
    size: int, count: int, needed: int, server: int | None
) -> Recommendation | None:
    """
    Recommend Postgres' ``max_connections`` where it binds.

    :param size: connections of a worker's pool, int.
    :param count: workers, int.
    :param needed: what these need, by the budget, int.
    :param server: what the server has, int; None: unknown.
    :returns: None: the server has enough.
    """
    if server is None or server >= needed:
        return None
    return Recommendation(
        name="max_connections",
        value=needed,
        unit="connections of Postgres",
        environment={},
        measured=f"{count} workers with {size} connections each need {needed} by the budget, with "
        f"those of a reload and of a rolling deploy; the server has {server}.",
        binds="Postgres binds: the pools are smaller than they should be.",
        next="greenline capacity computes it for several hosts.",
        spread=0.0,
    )
