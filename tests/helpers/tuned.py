"""A result of greenline tune whose figures follow known laws."""

from collections.abc import Sequence

from greenline.tune import usl
from greenline.tune.results import (
    Latencies,
    Machine,
    Objective,
    Recommendation,
    Result,
    Shares,
    Step,
    Sweep,
    SweepName,
    Verification,
)

KNEE = 400.0
SIGMA, KAPPA, GAMMA = 0.05, 0.002, 240.0


def step(
    setting: float, rate: float, *, offered: float | None = None, p99_s: float | None = 0.05,
    cpu: float = 1.0, memory_mib: float = 90.0, noise: float = 0.02, postgres_s: float = 0.006,
) -> Step:  # fmt: skip
    """Return a step with three rounds around *rate*."""
    return Step(
        setting=setting,
        offered_rate=offered if offered is not None else rate,
        answered_rate=rate,
        good_rate=rate,
        errors=0.0,
        latencies=Latencies(
            p50_s=0.01, p99_s=p99_s, p999_s=p99_s and 2 * p99_s, samples=int(10 * rate)
        ),
        shares=Shares(
            queued_s=0.0003, pool_s=0.0002, connecting_s=0.001, postgres_s=postgres_s,
            mongodb_s=0.0, writing_s=0.0002, hub_s=0.0003, application_s=0.004,
        ),
        cpu_of_workers=cpu,
        memory_mib=memory_mib,
        connections=8,
        generator_limited=False,
        rounds=[rate * (1 - noise), rate, rate * (1 + noise)],
        seconds=30.0,
    )  # fmt: skip


def sweep(name: SweepName, unit: str, steps: Sequence[Step]) -> Sweep:
    return Sweep(name=name, unit=unit, steps=list(steps), interleaved=True)


def result(
    *,
    faster: float = 1.0,
    target: str = "shop:app",
    cpu: float = 1.8,
    offered_to_pools: float = 1.3 * KNEE,
) -> Result:
    """
    Return the result for two workers.

    :param faster: by what all rates are multiplied, float.
    :param target: the application.
    :param cpu: processors that both workers use at the knee, float.
    :param offered_to_pools: requests a second that are offered to each pool, float.
    """
    offered = [KNEE * faster * times for times in (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)]
    numbers = (1, 2, 3, 4, 6, 8)
    workers = [step(n, faster * usl.rate(n, SIGMA, KAPPA, GAMMA), cpu=n * 0.9) for n in numbers]
    pools = [
        step(n, faster * min(420.0, 110.0 * n), offered=faster * offered_to_pools)
        for n in (1, 2, 4, 8, 16)
    ]
    knee = KNEE * faster
    sweeps = [
        sweep("rate", "requests offered a second", [
            step(
                rate, min(rate, 1.1 * knee), offered=rate, cpu=cpu * min(1.1, rate / knee),
                p99_s=0.02 + 0.13 * rate / knee if rate <= knee else 0.9,
            )
            for rate in offered
        ]),
        sweep("pool", "connections of a worker's pool", pools),
        sweep("workers", "workers", workers),
        sweep("limit", "requests in progress", [
            step(n, faster * (200 + 200 * n / 16)) for n in (4, 8, 16)
        ]),
        sweep("idle", "idle sockets of a worker", [
            step(n, 0.0, memory_mib=80 + n * 0.02) for n in (0, 100, 500, 1_000)
        ]),
    ]  # fmt: skip
    fits = [
        usl.fit([(one.setting, one.good_rate) for one in steps], name)
        for name, steps in (("workers", workers), ("pool", pools))
    ]
    return Result(
        version="0.0",
        target=target,
        offered="GET /books, GET /authors",
        settings={"WEB_CONCURRENCY": "2", "POSTGRES_POOL_SIZE": "20"},
        machine=Machine(cores=2, memory_mib=4096, python="3.11.7", was_busy=0.1),
        objective=Objective(p99_s=0.2, errors=0.001),
        sweeps=sweeps,
        fits=fits,
        recommendations=[
            recommendation("workers", 2, "workers", WEB_CONCURRENCY="2"),
            recommendation("pool", 4, "connections", POSTGRES_POOL_SIZE="4"),
            recommendation("max_in_progress", 16, "requests", GREENLINE_MAX_IN_PROGRESS="16"),
            recommendation("keepalive", 16, "idle connections"),
        ],
        verification=Verification(
            predicted_rate=knee,
            measured_rate=0.96 * knee,
            spread=0.03,
            within=-0.04,
            against_defaults=step(5, 0.7 * knee, memory_mib=120.0),
            ours=step(2, 0.96 * knee),
        ),
        warnings=["The machine was busy at the start: 0.7 of each core."],
        total_s=240.0,
        at="2026-11-26T12:00:00+00:00",
    )


def recommendation(name: str, value: float, unit: str, **environment: str) -> Recommendation:
    return Recommendation(
        name=name,  # type: ignore[arg-type]
        value=value,
        unit=unit,
        environment=environment,
        measured=f"{value:g} {unit} gave 95 % of the best.",
        binds="The processors bind.",
        next="With more processors the pool would be next.",
        spread=0.02,
    )
