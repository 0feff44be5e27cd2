"""
Offer a load in rounds to servers that are started for it, and keep what came of it.

A sweep starts a server for each setting and round, and takes all settings once in each round, so
that what else the machine does in these minutes does not fall upon one of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from greenline.doctor.serving import TrialError
from greenline.tune import choose, server
from greenline.tune.load import Load
from greenline.tune.measure import Meter, Round
from greenline.tune.results import Objective, Step, Sweep, SweepName
from greenline.tune.server import Configuration, Server
from greenline.tune.timetable import FIRST_END_S, ROUNDS, Slice, Timetable

NEARLY = 0.5  # of what is offered: good answers to fewer are no stall
FEWEST_SAMPLES = 120  # of a round: a p99 of fewer is none
MAX_REST_S, REST_S = 10.0, 0.1  # between two rounds; the workers write their values so often
TOO_NOISY = 1.0  # the best setting's rounds vary by more: none is recommended
NOISY = 0.3  # the range of the rounds, as a part of their median


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


class Run:
    """
    The servers and rounds of a run, its time, and what came of it.

    :param asked: what a person asks for.
    :param cores: that the workers may use, int.
    :param say: is given what happens now, in a few words.
    """

    meter: Meter  # from the check of the load on

    def __init__(self, asked: Asked, cores: int, say: Say) -> None:
        self.asked, self.cores, self.say = asked, cores, say
        self.objective = asked.objective
        self.time = Timetable(asked.total_s)
        self.sweeps: dict[SweepName, Sweep] = {}
        self.least_end_s = FIRST_END_S  # the shortest that a round took beside itself
        self.settled = 0.0  # the limit that the last workers with `auto` have found
        self.warnings: list[str] = []
        self.is_complete = True  # all was measured that can be

    def sweep(
        self,
        name: SweepName,
        unit: str,
        values: Sequence[float],
        offered: float,
        configuration: Callable[[float], Configuration],
        kept: float | None = None,
    ) -> list[Step]:
        """
        Measure each setting in each round; return the steps, none if nothing can be said of them.

        :param name: of the sweep.
        :param unit: of its settings, str.
        :param values: the settings; as many are tried as there is time for.
        :param offered: requests a second, float.
        :param configuration: returns the server's for a setting.
        :param kept: a setting that is tried in any case, float; None: none but the smallest and
            the largest.
        """
        found = self.time.fitting(name, values, kept, min(2, len(values)))
        if found is None:
            self.miss(f"There was no time to try the {name}")
            return []
        chosen, one = found
        if left := [f"{value:.0f}" for value in values if value not in chosen]:
            self.warnings.append(f"Not tried for want of time: {name} {', '.join(left)}.")
        rounds: dict[float, list[Round]] = {value: [] for value in chosen}
        broken: set[float] = set()
        try:
            for number in range(ROUNDS):
                # Every other round in the other order: no setting always follows the same one.
                for value in chosen if number % 2 == 0 else reversed(chosen):
                    if value in broken:
                        continue
                    word = f"{value:.0f}" if value else "auto"
                    self.say(f"{name} {word}, round {number + 1} of {ROUNDS}")
                    self._need(self.time.start_s + one.total_s, f"all of the {name}")
                    try:
                        with self.started(configuration(value)) as running:
                            rounds[value].append(self.offer(running, offered, one))
                    except TrialError as error:
                        broken.add(value)
                        self.fail(f"{name} {word} was left out: {error}.")
        finally:
            steps = [
                self.meter.step(value, rounds[value])
                for value in chosen
                if len(rounds[value]) == ROUNDS and value not in broken  # at its end, perhaps
            ]
            if steps:
                self.sweeps[name] = Sweep(name=name, unit=unit, steps=steps, interleaved=True)
        if not steps:
            self.fail(f"None of the {name} could be measured in all rounds.")
        if steps and choose.best(steps).keeps_up:
            self.warnings.append(
                f"The load was the limit in the sweep of the {name}: more than {offered:.0f}/s was "
                "not offered, and the best one answered all of it. It may do more."
            )
        if any(one.generator_limited for one in steps):
            self.say_generator(f"In the sweep of the {name}")
        if (spread := max([one.spread or 0.0 for one in steps], default=0.0)) > NOISY:
            self.warnings.append(
                f"The rounds of the {name} vary by up to {spread:.0%}: what is recommended of it "
                "may be chance. Measure on a machine that does nothing else."
            )
        if steps and (spread := choose.best(steps).spread or 0.0) > TOO_NOISY:
            self.fail(
                f"The {name}: none is recommended, the best one's rounds vary by {spread:.0%}."
            )
            return []
        if steps and not choose.best(steps).good_rate:
            self.fail(f"The {name}: none is recommended, as none answers within the objective.")
            return []
        return steps

    @contextmanager
    def started(self, configuration: Configuration, *arguments: str) -> Iterator[Server]:
        """Serve what a person has given for the length of the block; note how long that takes."""
        begun_s = monotonic()
        with ExitStack() as stack:
            running = stack.enter_context(
                server.started(self.asked.target or "", self.asked.folder, configuration, arguments)
            )
            started_s = monotonic() - begun_s
            yield running
            # What `auto` has found is gone with the workers.
            if configuration.limit is None and running.workers is not None:
                self.settled = running.workers.value("limiter", "limit")
            ended_s = monotonic()
            stack.close()
            # With the time that it took to end.
            self.time.start_s = started_s + monotonic() - ended_s

    def is_met(
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
            self.say(what)
            rounds.append(self.offer(running, rate, one))
            step = self.meter.step(rate, rounds[-1:])
            if self.objective.is_met_by(step):
                return True
            if step.good_rate < nearly * rate:
                return False
        return False

    def offer(self, running: Server, rate: float, one: Slice) -> Round:
        """
        Offer the load once.

        :param running: the server.
        :param rate: requests a second, float.
        :param one: the seconds; more where there would be too few answers for a p99.
        :raises Stopped: they are not left.
        """
        seconds = max(one.seconds, FEWEST_SAMPLES / rate)
        self._need(one.warm_up_s + seconds, f"{FEWEST_SAMPLES} answers at {rate:.1f}/s")
        begun_s = monotonic()
        found = self.meter.offer(
            running.url, rate, seconds, one.warm_up_s, running.workers,
            is_spared=self.asked.url is not None,
        )  # fmt: skip
        # What an overload has left is not charged to the next round.
        until_s = monotonic() + MAX_REST_S
        while (
            running.workers is not None and not running.workers.are_idle() and monotonic() < until_s
        ):
            sleep(REST_S)
        self.time.end_s = monotonic() - begun_s - one.warm_up_s - seconds
        self.least_end_s = min(self.least_end_s, self.time.end_s)
        return found

    def at_most(self, rate: float) -> float:
        """Return *rate*, or the highest that may be offered."""
        return min(rate, self.asked.max_rate)

    def miss(self, what: str) -> None:
        """Note that there was no time for *what*."""
        self.fail(f"{what}; {max(self.time.left_s, 0):.0f} s were left (--total).")

    def fail(self, what: str) -> None:
        """Note that *what* was not measured."""
        self.is_complete = False
        self.warnings.append(what)

    def say_generator(self, where: str) -> None:
        """Note that the generator was the limit."""
        self.warnings.append(
            f"{where} the load generator was the limit, not the service: it was short of a "
            "processor. The rates are the least that the service can do."
        )

    def _need(self, seconds: float, what: str) -> None:
        if self.time.left_s < seconds:
            raise Stopped(
                f"no time for {what}: {max(self.time.left_s, 0):.0f} s of "
                f"{self.asked.total_s:.0f} s are left"
            )
