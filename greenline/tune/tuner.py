"""
Find the settings of an application one after the other, each by a sweep, and prove them.

First roughly the rate at which the objective breaks, with the environment's settings. Then, offered
more than that, the pool, the workers and the limit of requests in progress, each with what was
found before it; and then the rate of these.

While settings are compared, what is more than a worker can answer within the objective is refused:
in an overload the good answers are then as many as the setting can give, and not none.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPException
from time import monotonic, sleep

import msgspec

from greenline import __version__, settings
from greenline.budget.plan import Deployment, PostgresFacts, postgres_plan
from greenline.doctor.serving import TrialError
from greenline.errors import ConfigError
from greenline.tune import capacity, choose, idle, server, usl
from greenline.tune.check import check
from greenline.tune.machine import cores, cores_of_workers, machine
from greenline.tune.measure import Meter
from greenline.tune.observe import CONNECT_S, Workers
from greenline.tune.proof import prove
from greenline.tune.rate import ROUGH, find_rate
from greenline.tune.results import (
    Fit,
    Recommendation,
    Result,
    Step,
    Sweep,
    SweepName,
    Verification,
)
from greenline.tune.run import REST_S, Asked, Run, Say
from greenline.tune.server import Configuration, Server
from greenline.tune.timetable import SECONDS_S, WARM_UP_S, Slice

MORE = 1.15  # of the knee's rate: what pools and workers are offered
MUCH_MORE, MAX_MORE = 1.4, 6  # times that, if it is not too much for the largest
OVERLOAD = 1.5  # of the knee's rate: what limits are offered
POOLS = (1, 2, 4, 8, 16, 32, 64)
MIN_LIMIT = 4
ENOUGH_POOL = 16  # larger ones are tried if more requests are in progress at once
LIMITS = (2, 4)  # times the requests in progress at the knee
IDLE = (0, 250, 500, 1000)
MAX_LATE_S = 1.0  # of a worker's counts
MAX_WAIT = 0.5  # of the objective
# Of the objective, for the wait and for the answer of a request, while settings are compared: half
# of it is left for what an overload costs.
COMPARED = 0.25
BUSY_MACHINE = 0.5  # load average a core
FIRST_SHARE = 0.5  # of the rate that the durations of single requests promise
MAX_FIRST_RATE = 200.0
FITTED: tuple[SweepName, ...] = ("workers", "pool")


class Tuner:
    """
    Measure, and keep what is known so far.

    :param asked: what a person asks for.
    :param say: is given what happens now, in a few words.
    """

    def __init__(self, asked: Asked, say: Say) -> None:
        self._machine = machine()
        self._cores = min(len(cores_of_workers()), self._machine.cores)
        self._asked, self._objective = asked, asked.objective
        self._run = Run(asked, self._cores, say)
        self._at = datetime.now(UTC).isoformat(timespec="seconds")
        self._closing = ExitStack()
        self._recommended: list[Recommendation] = []
        self._facts: PostgresFacts | None = None
        self._too_large = 0  # a pool that was not tried as it does not fit
        self._verification: Verification | None = None
        self._words = asked.load.words
        self._is_seen = asked.url is None  # the workers
        self._now = Configuration(
            settings.WORKERS.read() if settings.WORKERS.is_set() else self._cores
        )
        self._rough_workers = self._now.workers  # that the rough knee is measured with
        self._max_wait_s = MAX_WAIT * asked.objective.p99_s
        if self._machine.was_busy > BUSY_MACHINE:
            self._run.warnings.append(
                f"The machine was busy at the start: a load average of {self._machine.was_busy:.1f}"
                " for each processor. What else runs on it takes from these figures."
            )

    def run(self) -> None:
        """
        Measure all that there is time for.

        :raises ConfigError: nothing can be offered, or the objective cannot be met.
        :raises TrialError: the application does not serve.
        :raises GeneratorError: the load could not be offered.
        :raises Stopped: a part was missing, without which nothing that follows can be measured.
        """
        with self._closing:
            self._measure()

    def _measure(self) -> None:
        with self._baseline() as base:
            base, first = self._check(base)
            if self._asked.url is not None:
                self._run.warnings.append(
                    "Only the rate is measured of a server that runs already: pools, workers and "
                    "limits need starts with other settings. Its nginx is taken to have as many "
                    f"processes as this machine has processors, {len(cores())}."
                )
                self._from_knee(find_rate(self._run, base, first, "rate alone"), None)
                return
            given, rough = self._now, find_rate(self._run, base, first, ROUGH)
            pools = base.workers.pools() if base.workers is not None else []
        compared = self._now._replace(
            limit=self._limit_of_objective(rough),
            max_wait_s=COMPARED * self._objective.p99_s,
        )
        if any(not name.startswith("mongo") for name in pools):
            self._pool(rough, compared)
        elif settings.databases()[0]:
            self._run.warnings.append(
                "The workers have no pool of ours for Postgres, so none is recommended: "
                "GREENLINE_POOL=1 pools what psycopg2 connects."
            )
        self._workers(rough, compared)
        self._limit(rough)
        if self._now.pool is not None:
            # If the largest that fits is the best, a larger one may be better.
            size, count = max(self._now.pool, self._too_large), self._now.workers
            needed = capacity.needed_for(size, _deployment(count))
            allowed = None if self._facts is None else self._facts.max_connections
            recommended = choose.max_connections(size, count, needed, allowed)
            self._recommended += [recommended] if recommended is not None else []
        try:
            with self._run.started(self._now) as running:
                knee = find_rate(self._run, running, self._highest(rough, "limit"), "rate")
        except ConfigError:
            # They miss the objective; the rough knee is that of the environment's.
            self._recommended.clear()
            self._now = given
            raise
        self._from_knee(knee, self._idle())
        self._verification = prove(self._run, self._now, knee.good_rate)
        if self._verification is not None and not self._verification.met:
            self._recommended.clear()
            self._run.warnings.append("Nothing is recommended, as the objective was missed.")

    def note_end(self, why: str) -> None:
        """
        Note that nothing more is measured.

        :param why: a sentence, str.
        """
        self._run.fail(why)

    @property
    def is_complete(self) -> bool:
        """Whether all was measured that can be."""
        return self._run.is_complete

    def result(self) -> Result:
        """Return what is known so far."""
        fits: list[Fit] = []
        for name in FITTED:
            if (sweep := self._run.sweeps.get(name)) is not None:
                points = [(step.setting, step.answered_rate) for step in sweep.steps]
                fits.append(usl.fit(points, name))
        known = self._now.environ
        if self._asked.url is not None:  # the others are not seen
            known = {settings.WORKERS.name: str(self._now.workers)} if self._is_seen else {}
        return Result(
            version=__version__,
            target=self._asked.target or self._asked.url or "",
            offered=self._words,
            settings=known,
            machine=self._machine,
            objective=self._objective,
            sweeps=[*self._run.sweeps.values()],
            fits=fits,
            recommendations=self._recommended,
            verification=self._verification,
            warnings=self._run.warnings,
            total_s=self._run.time.used_s,
            at=self._at,
        )

    @contextmanager
    def _baseline(self) -> Iterator[Server]:
        if self._asked.url is not None:
            found = server.running(self._asked.url, is_owned=self._asked.is_owned)
            self._run.time.start_s = 0.0
            yield found
        else:
            with self._run.started(self._now) as found:
                yield found

    def _check(self, base: Server) -> tuple[Server, float]:
        """Ask for each URL once; return the server, and the first rate to try."""
        self._run.say("asking for each URL once")
        answered = base.workers.answered() if base.workers is not None else 0
        checked = check(base.url, self._asked.load, self._asked.headers, self._asked.max_rate)
        self._words = checked.load.words
        self._run.warnings += checked.warnings
        limit_s = self._objective.p99_s
        if checked.fastest_s > limit_s:
            raise ConfigError(
                f"a single request takes {checked.fastest_s * 1e3:.0f} ms, without any load: the "
                f"objective of {limit_s * 1e3:.0f} ms cannot be met"
            )
        if self._asked.url is not None and base.workers is not None:
            if _has_answered(base.workers, answered):
                self._now = self._now._replace(workers=len(base.workers.running()))
                self._is_seen = True
                if not base.workers.look().requests:
                    self._run.warnings.append(
                        "The workers do not note where the time of a request goes: they do where "
                        f"{settings.OPS_BIND.name} is set."
                    )
            else:  # another one answers there
                base = base._replace(workers=None)
        self._run.meter = self._closing.enter_context(
            Meter(checked.load, self._asked.headers, self._objective)
        )
        self._fastest, self._fastest_s = checked.fastest, checked.fastest_s
        first = FIRST_SHARE * self._now.workers / checked.mean_s
        return base, min(max(first, 1.0), MAX_FIRST_RATE)

    def _pool(self, knee: Step, compared: Configuration) -> None:
        """Find the pool."""
        sizes = _pools(self._in_progress(knee))
        larger: list[float] = []
        self._facts = _facts()
        if self._facts is not None:
            # POSTGRES_POOL_SIZE is a limit: a pool has no more than its part of the budget.
            try:
                plan = postgres_plan(
                    self._facts,
                    _deployment(self._now.workers),
                    pgbouncer_pool_size=settings.sizing().pgbouncer_pool_size,
                )
            except ConfigError as error:
                self._run.warnings.append(f"Pools of any size were tried: {error}.")
            else:
                larger = [size for size in sizes if size > plan.worker]
                sizes = [size for size in sizes if size <= plan.worker] or sizes[:1]
        steps = self._run.sweep(
            "pool", "connections of a worker", sizes,
            self._too_much(knee, compared._replace(pool=int(sizes[-1]))),
            lambda size: compared._replace(pool=int(size)),
        )  # fmt: skip
        if not steps:
            return
        self._recommended.append(choose.pool(steps, self._cores))
        chosen = choose.smallest(steps)
        self._now = self._now._replace(pool=int(chosen.setting))
        if larger:
            self._run.warnings.append(
                f"Pools of more than {sizes[-1]:.0f} were not tried: their connections do not fit "
                "in what Postgres allows (greenline budget has the sum)."
            )
            if chosen.setting == sizes[-1]:
                self._too_large = int(larger[0])

    def _workers(self, knee: Step, compared: Configuration) -> None:
        """Find the workers."""
        counts = [*range(1, self._cores + 1)]
        if choose.waits(knee, self._cores):
            counts += [*range(self._cores + 1, 2 * self._cores + 1)]
        steps = self._run.sweep(
            "workers", "workers", counts,
            self._too_much(knee, compared._replace(workers=self._cores, pool=self._now.pool)),
            lambda count: compared._replace(workers=int(count), pool=self._now.pool),
            self._cores,
        )  # fmt: skip
        if not steps:
            return
        self._recommended.append(choose.workers(steps, self._cores))
        chosen = choose.smallest(steps)
        self._now = self._now._replace(workers=int(chosen.setting))

    def _too_much(self, knee: Step, configuration: Configuration) -> float:
        """Return a rate that is more than *configuration* does, or the highest that was tried."""
        rate = self._run.at_most(MORE * knee.offered_rate)
        one = Slice(WARM_UP_S, SECONDS_S)
        try:
            with self._run.started(configuration) as running:
                for _ in range(MAX_MORE):
                    what = f"what is too much: {rate:.0f}/s"
                    is_met = self._run.is_met(running, what, rate, one, [])
                    if not is_met or rate >= self._asked.max_rate:
                        break
                    rate = self._run.at_most(MUCH_MORE * rate)
        except TrialError as error:
            # A smaller setting may serve.
            self._run.fail(f"What is too much for the largest setting is not known: {error}.")
        return rate

    def _limit_of_objective(self, knee: Step) -> int:
        """Return how many requests a worker answers in a part of the objective at the knee."""
        answered = COMPARED * self._objective.p99_s * knee.answered_rate / self._rough_workers
        return max(MIN_LIMIT, math.ceil(2 * self._in_progress(knee)), math.floor(answered))

    def _in_progress(self, knee: Step) -> float:
        """Return the requests that a worker has in progress at the knee."""
        return choose.in_progress(knee) / self._rough_workers

    def _highest(self, rough: Step, name: SweepName) -> float:
        """Return the rate of the rough knee, or that of a sweep, whose settings may do more."""
        sweep = self._run.sweeps.get(name)
        return max([rough.offered_rate, *(one.good_rate for one in (sweep.steps if sweep else ()))])

    def _limit(self, knee: Step) -> None:
        """Try limits of requests in progress against what the worker finds by itself."""
        each = self._in_progress(knee)
        found = {math.ceil(times * each) for times in LIMITS}
        fixed = sorted({*found, self._limit_of_objective(knee)})
        auto = 0.0  # in place of a number, while it is not known
        base = self._now._replace(max_wait_s=self._max_wait_s)
        steps = self._run.sweep(
            "limit", "requests in progress", [auto, *fixed],
            self._run.at_most(OVERLOAD * self._highest(knee, "workers")),
            lambda limit: base._replace(limit=int(limit) or None),
        )  # fmt: skip
        sweep = self._run.sweeps.get("limit")
        if sweep is None:
            return
        # What the worker would find was not known before.
        of_auto = [
            _with_setting(one, self._run.settled) for one in sweep.steps if one.setting == auto
        ]
        numbers = [one for one in sweep.steps if one.setting != auto]
        shown = sorted([*numbers, *of_auto], key=lambda step: step.setting)
        self._run.sweeps["limit"] = msgspec.structs.replace(sweep, steps=shown)
        if not steps:
            return
        recommended = choose.limit(
            numbers, of_auto[0] if of_auto else None, knee, self._rough_workers, self._max_wait_s
        )
        self._recommended.append(recommended)
        is_auto = recommended.environment[settings.MAX_IN_PROGRESS.name] == "auto"
        self._now = base._replace(limit=None if is_auto else int(recommended.value))

    def _idle(self) -> float | None:
        """Measure what idle sockets cost a worker in memory, in KiB each."""
        asked_s = IDLE[-1] * max(self._fastest_s, 1 / self._asked.max_rate)
        if self._run.time.left_s < 2 * self._run.time.start_s + len(IDLE) + asked_s:
            self._run.miss("There was no time to measure what idle sockets cost")
            return None
        self._run.say("idle sockets")
        one = Configuration(1, pool=self._now.pool, worker_connections=IDLE[-1] + 100)
        try:
            with (
                idle.descriptors(IDLE[-1] + 100),
                self._run.started(one, "--keep-alive", "75") as running,
            ):
                steps = [
                    *idle.steps(
                        running, IDLE, self._fastest, self._asked.headers, self._asked.max_rate
                    )
                ]
        except (OSError, TrialError, HTTPException) as error:
            self._run.fail(f"What idle sockets cost was not measured: {error}.")
            return None
        self._run.sweeps["idle"] = Sweep(
            name="idle", unit="idle sockets", steps=steps, interleaved=False
        )
        return choose.idle_cost_kib(steps)

    def _from_knee(self, knee: Step, cost_kib: float | None) -> None:
        """Recommend what follows from the knee alone."""
        kept = choose.keepalive(knee)
        self._recommended.append(kept)
        if not self._is_seen:
            return  # the requests in progress are of an unknown number of workers
        proxies = len(cores())  # nginx: worker_processes auto
        connections = choose.worker_connections(
            knee, kept.value, proxies, self._now.workers, cost_kib
        )
        self._recommended.append(connections)
        if cost_kib is not None:
            self._recommended.append(choose.memory(knee, connections.value, cost_kib))
        self._now = self._now._replace(worker_connections=int(connections.value))


def _has_answered(workers: Workers, before: int) -> bool:
    """Return whether *workers* have counted a request more than *before*, or do so in a second."""
    until_s = monotonic() + MAX_LATE_S
    while workers.answered() <= before:
        if monotonic() > until_s:
            return False
        sleep(REST_S)
    return True


def _pools(in_progress: float) -> list[float]:
    """Return the sizes to try: until one for which no request has to wait."""
    return [float(size) for size in POOLS if size < 2 * max(in_progress, ENOUGH_POOL)]


def _with_setting(step: Step, setting: float) -> Step:
    return msgspec.structs.replace(step, setting=setting)


def _deployment(workers: int) -> Deployment:
    sizing = settings.sizing()
    return Deployment(workers, sizing.hosts or 1, sizing.surge_hosts)


def _facts() -> PostgresFacts | None:
    """Return what the Postgres in ``DATABASE_URL`` allows; None if it does not say."""
    url = settings.databases()[0]
    with suppress(Exception):  # another driver, or none
        import psycopg2

        from greenline.postgres.limits import read_facts

        with closing(psycopg2.connect(url, connect_timeout=CONNECT_S)) as conn:
            return read_facts(conn)
    return None
