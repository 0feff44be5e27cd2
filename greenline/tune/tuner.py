"""
Find the settings of an application one after the other, each by a sweep, and prove them.

First roughly the rate at which the objective breaks, with the environment's settings. Then, offered
more than that, the pool, the workers and the limit of requests in progress, each with what was
found before it; and then the rate of these. A sweep starts a server for each setting and round, and
takes all settings once in each round, so that what else the machine does in these minutes does not
fall upon one of them.

While settings are compared, what is more than a worker can answer within the objective is refused:
in an overload the good answers are then as many as the setting can give, and not none.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from statistics import mean
from time import monotonic, sleep
from typing import NamedTuple

import msgspec

from greenline import __version__, settings
from greenline.budget.plan import Deployment, PostgresFacts, postgres_plan
from greenline.doctor.serving import TrialError
from greenline.errors import ConfigError
from greenline.tune import capacity, choose, idle, server, usl
from greenline.tune.check import check
from greenline.tune.load import Load
from greenline.tune.machine import cores, cores_of_workers, machine
from greenline.tune.measure import BrokenService, Meter, Round
from greenline.tune.observe import CONNECT_S, Workers
from greenline.tune.results import (
    Fit,
    Objective,
    Recommendation,
    Result,
    Step,
    Sweep,
    SweepName,
    Verification,
)
from greenline.tune.search import ENOUGH, search
from greenline.tune.server import WORKER_CONNECTIONS, Configuration, Server
from greenline.tune.timetable import FIRST_END_S, ROUNDS, SECONDS_S, WARM_UP_S, Slice, Timetable

CURVE = (0.5, 1.0, 1.5)  # of the knee
MORE = 1.15  # of the knee's rate: what pools and workers are offered
MUCH_MORE, MAX_MORE = 1.4, 6  # times that, if it is not too much for the largest
OVERLOAD = 1.5  # of the knee's rate: what limits are offered
# The rounds of a search, about, the factor between its rates, and where it ends. A rough one has no
# curve.
ROUGH = "rough rate"
SEARCHES = {ROUGH: (8, 2.0, 0.25), "rate": (5, 1.25, ENOUGH), "rate alone": (12, 2.0, ENOUGH)}
NEARLY = 0.5  # of what is offered: good answers to fewer are no stall
LOWER, MAX_LOWER = 0.92, 4  # where the knee does not hold in three rounds: what is tried instead
FEWEST_SAMPLES = 120  # of a round: a p99 of fewer is none
POOLS = (1, 2, 4, 8, 16, 32, 64)
MIN_LIMIT = 4
ENOUGH_POOL = 16  # larger ones are tried if more requests are in progress at once
LIMITS = (2, 4)  # times the requests in progress at the knee
IDLE = (0, 250, 500, 1000)
MAX_LATE_S = 1.0  # of a worker's counts
MAX_REST_S, REST_S = 10.0, 0.1  # between two rounds; the workers write their values so often
MAX_WAIT = 0.5  # of the objective
# Of the objective, for the wait and for the answer of a request, while settings are compared: half
# of it is left for what an overload costs.
COMPARED = 0.25
TOO_NOISY = 1.0  # the best setting's rounds vary by more: none is recommended
PROOF = (0.9, 1.0, 1.1)  # of the predicted rate
DEFAULTS = (PROOF[-1],)  # the same for gunicorn's defaults, which may do more
BUSY_MACHINE = 0.5  # load average a core
NOISY = 0.3  # the range of the rounds, as a part of their median
QUEUED = 0.2  # of the time in which a worker waits for a processor
FIRST_SHARE = 0.5  # of the rate that the durations of single requests promise
MAX_FIRST_RATE = 200.0
WITHIN = 0.15
FITTED: tuple[SweepName, ...] = ("workers", "pool")


class Stopped(Exception):
    """Nothing more is measured; what is known so far is reported."""


class Asked(NamedTuple):
    """
    What a person asks for.

    :param target: what gunicorn is given, str; None with *url*.
    :param folder: that it runs in.
    :param url: of a server that runs already, str; None: *target* is started.
    :param is_owned: the host of *url* is theirs, bool.
    :param load: what is offered.
    :param headers: of each request.
    :param objective: the objective.
    :param total_s: seconds that it may take, float.
    :param max_rate: requests a second, float.
    """

    target: str | None
    folder: Path
    url: str | None
    is_owned: bool
    load: Load
    headers: dict[str, str]
    objective: Objective
    total_s: float
    max_rate: float


Say = Callable[[str], None]


class Tuner:
    """
    Measure, and keep what is known so far.

    :param asked: what a person asks for.
    :param say: is given what happens now, in a few words.
    """

    def __init__(self, asked: Asked, say: Say) -> None:
        self._asked, self._say = asked, say
        self._objective = asked.objective
        self._time = Timetable(asked.total_s)
        self._at = datetime.now(UTC).isoformat(timespec="seconds")
        self._sweeps: dict[SweepName, Sweep] = {}
        self._closing = ExitStack()
        self._end_s = FIRST_END_S  # the shortest that a round took beside itself
        self._settled = 0.0  # the limit that the last workers with `auto` have found
        self._recommended: list[Recommendation] = []
        self._facts: PostgresFacts | None = None
        self._too_large = 0  # a pool that was not tried as it does not fit
        self._verification: Verification | None = None
        self._words = asked.load.words
        self._machine = machine()
        self._cores = min(len(cores_of_workers()), self._machine.cores)
        self.warnings: list[str] = []
        self.is_complete = True  # all was measured that can be
        self._is_seen = asked.url is None  # the workers
        self._now = Configuration(
            settings.WORKERS.read() if settings.WORKERS.is_set() else self._cores
        )
        self._rough_workers = self._now.workers  # that the rough knee is measured with
        self._max_wait_s = MAX_WAIT * asked.objective.p99_s
        if self._machine.was_busy > BUSY_MACHINE:
            self.warnings.append(
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
            self._run()

    def _run(self) -> None:
        with self._baseline() as base:
            base, first = self._check(base)
            if self._asked.url is not None:
                self.warnings.append(
                    "Only the rate is measured of a server that runs already: pools, workers and "
                    "limits need starts with other settings. Its nginx is taken to have as many "
                    f"processes as this machine has processors, {len(cores())}."
                )
                self._from_knee(self._rate(base, first, "rate alone"), None)
                return
            given, rough = self._now, self._rate(base, first, ROUGH)
            pools = base.workers.pools() if base.workers is not None else []
        compared = self._now._replace(
            limit=self._limit_of_objective(rough),
            max_wait_s=COMPARED * self._objective.p99_s,
        )
        if any(not name.startswith("mongo") for name in pools):
            self._pool(rough, compared)
        elif settings.databases()[0]:
            self.warnings.append(
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
            with self._started(self._now) as running:
                knee = self._rate(running, self._highest(rough, "limit"), "rate")
        except ConfigError:
            # They miss the objective; the rough knee is that of the environment's.
            self._recommended.clear()
            self._now = given
            raise
        self._from_knee(knee, self._idle())
        self._prove(knee.good_rate)

    def result(self) -> Result:
        """Return what is known so far."""
        fits: list[Fit] = []
        for name in FITTED:
            if (sweep := self._sweeps.get(name)) is not None:
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
            sweeps=[*self._sweeps.values()],
            fits=fits,
            recommendations=self._recommended,
            verification=self._verification,
            warnings=self.warnings,
            total_s=self._time.used_s,
            at=self._at,
        )

    # -- the parts ---------------------------------------------------------------------------

    @contextmanager
    def _baseline(self) -> Iterator[Server]:
        if self._asked.url is not None:
            found = server.running(self._asked.url, is_owned=self._asked.is_owned)
            self._time.start_s = 0.0
            yield found
        else:
            with self._started(self._now) as found:
                yield found

    def _check(self, base: Server) -> tuple[Server, float]:
        """Ask for each URL once; return the server, and the first rate to try."""
        self._say("asking for each URL once")
        answered = base.workers.answered() if base.workers is not None else 0
        checked = check(base.url, self._asked.load, self._asked.headers, self._asked.max_rate)
        self._words = checked.load.words
        self.warnings += checked.warnings
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
                    self.warnings.append(
                        "The workers do not note where the time of a request goes: they do where "
                        f"{settings.OPS_BIND.name} is set."
                    )
            else:  # another one answers there
                base = base._replace(workers=None)
        self._meter = self._closing.enter_context(
            Meter(checked.load, self._asked.headers, self._objective)
        )
        self._fastest, self._fastest_s = checked.fastest, checked.fastest_s
        first = FIRST_SHARE * self._now.workers / checked.mean_s
        return base, min(max(first, 1.0), MAX_FIRST_RATE)

    def _rate(self, base: Server, first: float, part: str) -> Step:
        """
        Find the highest rate that meets the objective, and measure the curve around it.

        :param base: the server.
        :param first: requests a second, float.
        :param part: one of :data:`SEARCHES`, str.
        """
        searched, factor, enough = SEARCHES[part]
        curve = () if part == ROUGH else CURVE
        number = searched + ROUNDS * len(curve)
        self._time.end_s = self._end_s  # not as after the overload of a sweep
        found = self._time.slice_for(part, number, 0)
        sweep = self._sweeps.get("rate")
        rough = None if sweep is None else sweep.knee(self._objective)
        if found is None:
            if rough is not None:
                # The rough knee is that of other settings: what follows would not be of these.
                self._miss("There was no time for the rate of these settings")
                raise Stopped("no time for the rate of these settings, and for what follows it")
            raise ConfigError(
                f"too little time for three rounds: {self._asked.total_s:.0f} s are given, and "
                f"{self._time.least_s(part, number):.0f} s are the least"
            )
        rounds: dict[float, list[Round]] = {}

        def is_met(rate: float) -> bool:
            what, tries = f"searching the rate: {rate:.0f}/s", rounds.setdefault(rate, [])
            # Where nothing was met before, the first rounds may have been the slow ones.
            is_first = all(other >= rate for other in rounds)
            try:
                return self._is_met(base, what, rate, found, tries, NEARLY if not is_first else 0.0)
            except BrokenService:
                # Where a lower rate was met, it is the limit of a service that refuses the rest.
                if is_first:
                    raise
                del rounds[rate]
                return False

        try:
            knee = search(is_met, first, self._asked.max_rate, factor, enough)
            if not knee and rough is not None:
                # What the settings answered in an overload may be more than they can do for long.
                # A low rate that was missed in that search would end the curve of this one.
                rounds.clear()
                knee = search(is_met, rough.offered_rate, self._asked.max_rate, factor, enough)
            if not knee:
                low = min(rounds)
                seen = self._meter.step(low, rounds[low])
                p99_s = seen.latencies.p99_s
                raise ConfigError(
                    f"the objective is missed at {low:.0f}/s already: {seen.errors:.1%} errors, "
                    f"p99 {'unknown' if p99_s is None else f'{p99_s * 1e3:.0f} ms'}"
                )
            rates = [self._at_most(share * knee) for share in curve]
            self._take_turns(base, rates, found, rounds, knee)
            # The search has met it once, and a queue that grows is short at first.
            held = knee
            for _ in range(MAX_LOWER if curve else 0):
                if self._objective.is_met_by(self._meter.step(held, rounds[held])):
                    break
                held *= LOWER
                self._take_turns(base, [held], found, rounds, knee)
            # What was met once beyond it was chance.
            for rate in [rate for rate in rounds if rate > held and len(rounds[rate]) < ROUNDS]:
                if self._objective.is_met_by(self._meter.step(rate, rounds[rate])):
                    del rounds[rate]
            if held >= self._asked.max_rate:
                self.warnings.append(
                    f"The objective was still met at --max-rate, {held:.0f}/s: the knee is higher."
                )
        finally:
            steps = [self._meter.step(rate, one) for rate, one in sorted(rounds.items()) if one]
            measured = Sweep(name="rate", unit="requests a second", steps=steps, interleaved=True)
            # Where it has ended without a knee, the rough one says more.
            if steps and (rough is None or measured.knee(self._objective) is not None):
                self._sweeps["rate"] = measured
        step = measured.knee(self._objective)
        if step is None:
            raise ConfigError("no rate met the objective in all rounds: the figures vary too much")
        if part == ROUGH:
            return step
        at_knee = [one.observed for one in rounds[step.setting] if one.observed is not None]
        queued = mean([one.queued for one in at_knee] or [0.0])
        if queued > QUEUED and step.cpu_of_workers < choose.BUSY * self._cores:
            self.warnings.append(
                f"At the knee a worker waited for a processor for {queued:.0%} of the time, and the"
                f" workers used {step.cpu_of_workers:.1f} of {self._cores}: the generator, the "
                "database or something else on this machine had them."
            )
        if step.generator_limited:
            self._say_generator("At the knee")
        return step

    def _say_generator(self, where: str) -> None:
        self.warnings.append(
            f"{where} the load generator was the limit, not the service: it was short of a "
            "processor. The rates are the least that the service can do."
        )

    def _take_turns(
        self,
        base: Server,
        rates: Sequence[float],
        one: Slice,
        rounds: dict[float, list[Round]],
        knee: float,
    ) -> None:
        """
        Offer each of *rates* once in each round, and put what came of it into *rounds*.

        What was there before counts only until there are as many new ones: a search has kept those
        rounds of a rate that met the objective.
        """
        refused: set[float] = set()
        for number in range(ROUNDS):
            for rate in dict.fromkeys(rates):
                if rate in refused:
                    continue
                self._say(f"rate, round {number + 1} of {ROUNDS}: {rate:.0f}/s")
                try:
                    found = self._offer(base, rate, one)
                    rounds[rate] = [*rounds.get(rate, []), found][-ROUNDS:]
                except BrokenService:
                    # As in the search.
                    if rate <= knee:
                        raise
                    refused.add(rate)
                    rounds.pop(rate, None)

    def _sweep(
        self,
        name: SweepName,
        unit: str,
        values: Sequence[float],
        offered: float,
        configuration: Callable[[float], Configuration],
        kept: float | None = None,
    ) -> list[Step]:
        """Measure each setting in each round; return the steps, none if there is no time."""
        found = self._time.fitting(name, values, kept, min(2, len(values)))
        if found is None:
            self._miss(f"There was no time to try the {name}")
            return []
        chosen, one = found
        rounds: dict[float, list[Round]] = {value: [] for value in chosen}
        broken: set[float] = set()
        try:
            for number in range(ROUNDS):
                # Every other round in the other order: no setting always follows the same one.
                for value in chosen if number % 2 == 0 else reversed(chosen):
                    if value in broken:
                        continue
                    word = f"{value:.0f}" if value else "auto"
                    self._say(f"{name} {word}, round {number + 1} of {ROUNDS}")
                    self._need(self._time.start_s + one.total_s, f"all of the {name}")
                    try:
                        with self._started(configuration(value)) as running:
                            rounds[value].append(self._offer(running, offered, one))
                    except TrialError as error:
                        broken.add(value)
                        self._fail(f"{name} {word} was left out: {error}.")
        finally:
            steps = [
                self._meter.step(value, rounds[value])
                for value in chosen
                if len(rounds[value]) == ROUNDS and value not in broken  # at its end, perhaps
            ]
            if steps:
                self._sweeps[name] = Sweep(name=name, unit=unit, steps=steps, interleaved=True)
        if not steps:
            self._fail(f"None of the {name} could be measured in all rounds.")
        if steps and choose.best(steps).keeps_up:
            self.warnings.append(
                f"The load was the limit of the {name}: the best one answered all of "
                f"{offered:.0f}/s. The figures are the least that they can do."
            )
        if any(one.generator_limited for one in steps):
            self._say_generator(f"Of the {name}")
        if (spread := max([one.spread or 0.0 for one in steps], default=0.0)) > NOISY:
            self.warnings.append(
                f"The rounds of the {name} vary by up to {spread:.0%}: what is recommended of it "
                "may be chance. Measure on a machine that does nothing else."
            )
        if steps and (spread := choose.best(steps).spread or 0.0) > TOO_NOISY:
            self._fail(
                f"The {name}: none is recommended, the best one's rounds vary by {spread:.0%}."
            )
            return []
        if steps and not choose.best(steps).good_rate:
            self._fail(f"The {name}: none is recommended, as none answers within the objective.")
            return []
        return steps

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
                self.warnings.append(f"Pools of any size were tried: {error}.")
            else:
                larger = [size for size in sizes if size > plan.worker]
                sizes = [size for size in sizes if size <= plan.worker] or sizes[:1]
        steps = self._sweep(
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
            self.warnings.append(
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
        steps = self._sweep(
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
        rate = self._at_most(MORE * knee.offered_rate)
        one = Slice(WARM_UP_S, SECONDS_S)
        try:
            with self._started(configuration) as running:
                for _ in range(MAX_MORE):
                    what = f"what is too much: {rate:.0f}/s"
                    is_met = self._is_met(running, what, rate, one, [])
                    if not is_met or rate >= self._asked.max_rate:
                        break
                    rate = self._at_most(MUCH_MORE * rate)
        except TrialError as error:
            # A smaller setting may serve.
            self._fail(f"What is too much for the largest setting is not known: {error}.")
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
        sweep = self._sweeps.get(name)
        return max([rough.offered_rate, *(one.good_rate for one in (sweep.steps if sweep else ()))])

    def _limit(self, knee: Step) -> None:
        """Try limits of requests in progress against what the worker finds by itself."""
        each = self._in_progress(knee)
        found = {math.ceil(times * each) for times in LIMITS}
        fixed = sorted({*found, self._limit_of_objective(knee)})
        auto = 0.0  # in place of a number, while it is not known
        base = self._now._replace(max_wait_s=self._max_wait_s)
        steps = self._sweep(
            "limit", "requests in progress", [auto, *fixed],
            self._at_most(OVERLOAD * self._highest(knee, "workers")),
            lambda limit: base._replace(limit=int(limit) or None),
        )  # fmt: skip
        sweep = self._sweeps.get("limit")
        if sweep is None:
            return
        # What the worker would find was not known before.
        of_auto = [_with_setting(one, self._settled) for one in sweep.steps if one.setting == auto]
        numbers = [one for one in sweep.steps if one.setting != auto]
        shown = sorted([*numbers, *of_auto], key=lambda step: step.setting)
        self._sweeps["limit"] = msgspec.structs.replace(sweep, steps=shown)
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
        if self._time.left_s < 2 * self._time.start_s + len(IDLE) + asked_s:
            self._miss("There was no time to measure what idle sockets cost")
            return None
        self._say("idle sockets")
        one = Configuration(1, pool=self._now.pool, worker_connections=IDLE[-1] + 100)
        try:
            with (
                idle.descriptors(IDLE[-1] + 100),
                self._started(one, "--keep-alive", "75") as running,
            ):
                steps = [
                    *idle.steps(
                        running, IDLE, self._fastest, self._asked.headers, self._asked.max_rate
                    )
                ]
        except (OSError, TrialError, HTTPException) as error:
            self._fail(f"What idle sockets cost was not measured: {error}.")
            return None
        self._sweeps["idle"] = Sweep(
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

    def _prove(self, predicted: float) -> None:
        """Start what is recommended, and what gunicorn's documentation has, and compare."""
        rounds = ROUNDS * (len(PROOF) + len(DEFAULTS))
        one = self._time.slice_for("proof", rounds, 2 * ROUNDS)
        if one is None:
            self._miss("There was no time to prove it")
            return
        # Twice the cores and one, and no limit of requests, of time or of the pool.
        defaults = Configuration(2 * self._cores + 1, pool=0, limit=WORKER_CONNECTIONS)
        ours: dict[float, list[Round]] = {share: [] for share in PROOF}
        theirs: dict[float, list[Round]] = {share: [] for share in DEFAULTS}
        is_compared = True
        try:
            for number in range(ROUNDS):
                self._say(f"proof, round {number + 1} of {ROUNDS}")
                self._offer_each(self._now, ours, predicted, one)
                if not is_compared:
                    continue
                self._say(f"gunicorn's defaults, round {number + 1} of {ROUNDS}")
                try:
                    self._offer_each(defaults, theirs, predicted, one)
                except TrialError as error:
                    is_compared = False
                    self.warnings.append(f"The defaults of gunicorn did not serve: {error}.")
        except Stopped as error:
            self._miss(f"The proof has {len(ours[1.0])} of {ROUNDS} rounds: {error}")
            if not ours[1.0]:
                return
        steps = [self._meter.step(float(self._now.workers), found) for found in ours.values()]
        defaulted = [
            self._meter.step(float(defaults.workers), found) for found in theirs.values() if found
        ]
        met = [one for one in steps if self._objective.is_met_by(one)]
        best = choose.best(met or steps)
        if not met:
            self._fail("The proof missed the objective at each rate, so nothing is recommended.")
            self._recommended.clear()
        within = (best.good_rate - predicted) / predicted
        self._verification = Verification(
            predicted_rate=predicted,
            measured_rate=best.good_rate,
            spread=best.spread,
            within=within,
            against_defaults=choose.best(defaulted) if defaulted else None,
            ours=choose.best(steps),
            met=bool(met),
        )
        if abs(within) > WITHIN:
            self.warnings.append(
                f"The proof missed: {predicted:.0f}/s were predicted, and {best.good_rate:.0f}/s "
                "measured. The figures vary too much, or the machine does something else."
            )

    def _offer_each(
        self,
        configuration: Configuration,
        rounds: dict[float, list[Round]],
        predicted: float,
        one: Slice,
    ) -> None:
        """Offer to a new server each of the shares of *predicted* that *rounds* has, once."""
        with self._started(configuration) as running:
            found = [self._offer(running, self._at_most(each * predicted), one) for each in rounds]
        for each, came in zip(rounds.values(), found, strict=True):
            each.append(came)

    # -- one round ---------------------------------------------------------------------------

    @contextmanager
    def _started(self, configuration: Configuration, *arguments: str) -> Iterator[Server]:
        begun_s = monotonic()
        with ExitStack() as stack:
            running = stack.enter_context(
                server.started(
                    self._asked.target or "", self._asked.folder, configuration, arguments
                )
            )
            started_s = monotonic() - begun_s
            yield running
            # What `auto` has found is gone with the workers.
            if configuration.limit is None and running.workers is not None:
                self._settled = running.workers.value("limiter", "limit")
            ended_s = monotonic()
            stack.close()
            # With the time that it took to end.
            self._time.start_s = started_s + monotonic() - ended_s

    def _is_met(
        self,
        running: Server,
        what: str,
        rate: float,
        one: Slice,
        rounds: list[Round],
        nearly: float = NEARLY,
    ) -> bool:
        """Return whether the objective is met at *rate*; add what was offered to *rounds*."""
        # What fails once is tried again: a stall of the machine is no limit of the service.
        for _ in range(2):
            self._say(what)
            rounds.append(self._offer(running, rate, one))
            step = self._meter.step(rate, rounds[-1:])
            if self._objective.is_met_by(step):
                return True
            if step.good_rate < nearly * rate:
                return False
        return False

    def _offer(self, running: Server, rate: float, one: Slice) -> Round:
        seconds = max(one.seconds, FEWEST_SAMPLES / rate)
        self._need(one.warm_up_s + seconds, f"{FEWEST_SAMPLES} answers at {rate:.1f}/s")
        begun_s = monotonic()
        found = self._meter.offer(
            running.url, rate, seconds, one.warm_up_s, running.workers,
            is_spared=self._asked.url is not None,
        )  # fmt: skip
        # What an overload has left is not charged to the next round.
        until_s = monotonic() + MAX_REST_S
        while (
            running.workers is not None and not running.workers.are_idle() and monotonic() < until_s
        ):
            sleep(REST_S)
        self._time.end_s = monotonic() - begun_s - one.warm_up_s - seconds
        self._end_s = min(self._end_s, self._time.end_s)
        return found

    def _at_most(self, rate: float) -> float:
        return min(rate, self._asked.max_rate)

    def _miss(self, what: str) -> None:
        self._fail(f"{what}; {max(self._time.left_s, 0):.0f} s were left (--total).")

    def _fail(self, what: str) -> None:
        self.is_complete = False
        self.warnings.append(what)

    def _need(self, seconds: float, what: str) -> None:
        if self._time.left_s < seconds:
            raise Stopped(
                f"no time for {what}: {max(self._time.left_s, 0):.0f} s of "
                f"{self._asked.total_s:.0f} s are left"
            )


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
