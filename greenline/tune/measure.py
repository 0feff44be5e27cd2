"""
Offer a load to a server, and return what came of it: one round, or a step of several.

The generator is a process of its own. With :data:`CORES_FOR_TWO` cores or more it has one for
itself, and the workers have the others.
"""

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import mean, median, median_low
from typing import NamedTuple, Self

import msgspec

from greenline.doctor.serving import python_path
from greenline.tune.generator import NO_ANSWER, Outcome, Plan
from greenline.tune.load import Load
from greenline.tune.machine import cores, pin
from greenline.tune.observe import Observed, Workers, between, connections_watched
from greenline.tune.results import CORES_FOR_TWO, Latencies, Objective, Shares, Step

MIN_SAMPLES_P99, MIN_SAMPLES_P999 = 100, 1_000
MAX_GENERATOR_CPU = 0.9  # of a processor
MAX_LATE = 0.25  # of the objective's p99
MIN_TIMEOUT_S, TIMEOUT_OBJECTIVES = 2.0, 10


class BrokenService(Exception):
    """More than half of the answers were errors, and the load has ended at once."""


class GeneratorError(Exception):
    """The generator could not offer the load."""


class Round(NamedTuple):
    """
    What came of one offer.

    :param offered_rate: requests a second, float.
    :param seconds: that it was offered for, float.
    :param outcome: what the generator says.
    :param observed: what the workers say; None: they are not seen.
    :param connections: most at the database, int.
    """

    offered_rate: float
    seconds: float
    outcome: Outcome
    observed: Observed | None
    connections: int

    @property
    def requests(self) -> int:
        """Those that count."""
        return sum(self.outcome.statuses.values())

    @property
    def answered_rate(self) -> float:
        """Answers without error a second."""
        return self.outcome.answered / self.seconds

    @property
    def errors(self) -> float:
        """The part of the requests that failed."""
        return 1 - len(self.outcome.durations_s) / self.requests if self.requests else 1.0

    def good_rate(self, objective: Objective) -> float:
        """Answers without error and within the objective a second."""
        limit_s = objective.p99_s
        return sum(each <= limit_s for each in self.outcome.durations_s) / self.seconds

    def is_limited(self, objective: Objective) -> bool:
        """Whether the generator was the limit."""
        outcome = self.outcome
        return outcome.cpu > MAX_GENERATOR_CPU or outcome.late_s > MAX_LATE * objective.p99_s


class Meter:
    """
    Offer a load, always the same, at rates of your choice. Used in a ``with`` block.

    :param load: what is offered.
    :param headers: of each request.
    :param objective: what a good answer is.
    """

    def __init__(self, load: Load, headers: dict[str, str], objective: Objective) -> None:
        self._load, self._headers, self._objective = load, headers, objective
        self._timeout_s = max(MIN_TIMEOUT_S, TIMEOUT_OBJECTIVES * objective.p99_s)
        self._next = 0  # in the load: each round goes on where the last one ended
        # One for all rounds, as its start takes as long as a round. In a session of its own:
        # Ctrl-C is this process's.
        self._generator = subprocess.Popen(
            [sys.executable, "-m", "greenline.tune.generator"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path()},
        )  # fmt: skip
        if len(cores()) >= CORES_FOR_TWO:
            pin(self._generator.pid, cores()[-1:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._generator.kill()
        with self._generator:  # closes its pipes, and waits for it
            pass

    def offer(
        self,
        url: str,
        rate: float,
        seconds: float,
        warm_up_s: float,
        workers: Workers | None,
        *,
        is_spared: bool = True,
    ) -> Round:
        """
        Offer the load once.

        :param url: of the server, str.
        :param rate: requests a second, float.
        :param seconds: that count, float.
        :param warm_up_s: seconds before them that do not count, float.
        :param workers: those of the server; None: they are not seen.
        :param is_spared: it ends where most answers are errors, bool, default True. A server that
            was started to be overloaded is not spared.
        :raises BrokenService: more than half of the answers are errors.
        :raises GeneratorError: it had too few descriptors, or failed.
        """
        plan = Plan(
            url, self._load.requests, self._headers, rate, warm_up_s, seconds, self._timeout_s,
            self._next, is_spared,
        )  # fmt: skip
        self._next += math.ceil(rate * (warm_up_s + seconds))
        with connections_watched(workers) as peak:
            outcome, observed = self._run(plan, workers)
        if outcome.descriptors:
            raise GeneratorError(
                f"the load generator may open {outcome.descriptors} connections, and as many "
                f"requests had no answer at {rate:.0f}/s: raise the limit of descriptors "
                "(ulimit -Hn)"
            )
        if outcome.is_broken:
            errors = f"more than half of the answers were errors: {_errors(outcome)}"
            raise BrokenService(f"at {rate:.0f}/s {errors}")
        return Round(rate, seconds, outcome, observed, peak.connections)

    def _run(self, plan: Plan, workers: Workers | None) -> tuple[Outcome, Observed | None]:
        given, said = self._generator.stdin, self._generator.stdout
        if given is None or said is None:
            raise AssertionError("they are pipes")
        try:
            given.write(msgspec.json.encode(plan) + b"\n")
            given.flush()
            said.readline()  # it measures from here
            first = workers.look() if workers is not None else None
            said.readline()  # the last request was sent
            last = workers.look() if workers is not None else None
            outcome = msgspec.json.decode(said.readline(), type=Outcome)
        except (BrokenPipeError, msgspec.DecodeError):
            raise GeneratorError("the load generator failed; its error is above") from None
        return outcome, between(first, last) if first is not None and last is not None else None

    def step(self, setting: float, rounds: Sequence[Round]) -> Step:
        """Return the step that *rounds* are of, with medians of their figures."""
        objective = self._objective
        good = [one.good_rate(objective) for one in rounds]
        durations_s = sorted(each for one in rounds for each in one.outcome.durations_s)
        seen = [one.observed for one in rounds if one.observed is not None]
        shares = [one.shares for one in seen if one.shares is not None]
        return Step(
            setting=setting,
            offered_rate=median(one.offered_rate for one in rounds),
            answered_rate=median(one.answered_rate for one in rounds),
            good_rate=median(good),
            errors=median_low(one.errors for one in rounds),
            latencies=_of_rounds(rounds, durations_s),
            shares=_mean(shares) if shares else None,
            cpu_of_workers=median([one.cpu for one in seen] or [0.0]),
            memory_mib=max([one.memory_mib for one in seen], default=0.0),
            connections=max(one.connections for one in rounds),
            generator_limited=sum(one.is_limited(objective) for one in rounds) * 2 > len(rounds),
            rounds=good,
            seconds=sum(one.seconds for one in rounds),
        )


def latencies(durations_s: Sequence[float]) -> Latencies:
    """Return the quantiles of *durations_s*, which are in order, as far as there are enough."""

    def quantile(share: float, enough: int) -> float | None:
        if len(durations_s) < enough:
            return None
        return durations_s[math.ceil(share * len(durations_s)) - 1]

    return Latencies(
        p50_s=quantile(0.5, 1),
        p99_s=quantile(0.99, MIN_SAMPLES_P99),
        p999_s=quantile(0.999, MIN_SAMPLES_P999),
        samples=len(durations_s),
    )


def _of_rounds(rounds: Sequence[Round], durations_s: Sequence[float]) -> Latencies:
    """Return the medians of the rounds' p50 and p99, and the p999 of all *durations_s*."""
    # One round with a stall, of the machine for instance, is not the p99 of three.
    found = [latencies(sorted(one.outcome.durations_s)) for one in rounds]
    p50_s = [one.p50_s for one in found if one.p50_s is not None]
    p99_s = [one.p99_s for one in found if one.p99_s is not None]
    return msgspec.structs.replace(
        latencies(durations_s),
        # Of two rounds it is the better one, as in the search for the rate.
        p50_s=median_low(p50_s) if p50_s else None,
        p99_s=median_low(p99_s) if len(p99_s) == len(rounds) else None,
    )


def _mean(shares: Sequence[Shares]) -> Shares:
    fields = Shares.__struct_fields__
    return Shares(**{name: mean(getattr(one, name) for one in shares) for name in fields})


def _errors(outcome: Outcome) -> str:
    found = {
        ("without an answer" if status == NO_ANSWER else str(status)): count
        for status, count in sorted(outcome.statuses.items())
        if status // 100 != 2
    }
    return ", ".join(f"{count} {what}" for what, count in found.items()) or "during the warm-up"
