"""Find the highest rate that meets the objective, and measure the curve around it."""

from collections.abc import Sequence
from statistics import mean

from greenline.errors import ConfigError
from greenline.tune import choose
from greenline.tune.measure import BrokenService, Round
from greenline.tune.results import Step, Sweep
from greenline.tune.run import NEARLY, Run, Stopped
from greenline.tune.search import ENOUGH, search
from greenline.tune.server import Server
from greenline.tune.timetable import ROUNDS, Slice

CURVE = (0.5, 1.0, 1.5)  # of the knee
# The rounds of a search, about, the factor between its rates, and where it ends. A rough one has no
# curve.
ROUGH = "rough rate"
SEARCHES = {ROUGH: (8, 2.0, 0.25), "rate": (5, 1.25, ENOUGH), "rate alone": (12, 2.0, ENOUGH)}
LOWER, MAX_LOWER = 0.92, 4  # where the knee does not hold in three rounds: what is tried instead
QUEUED = 0.2  # of the time in which a worker waits for a processor


def find_rate(run: Run, base: Server, first: float, part: str) -> Step:
    """
    Return the step of the highest rate that meets the objective; the curve is noted in *run*.

    :param run: the run.
    :param base: the server.
    :param first: requests a second that are tried first, float.
    :param part: one of :data:`SEARCHES`, str.
    :raises ConfigError: no rate meets it, or there is too little time.
    :raises Stopped: the same, after a sweep of other settings.
    :raises BrokenService: most answers to the first rates are errors.
    """
    searched, factor, enough = SEARCHES[part]
    curve = () if part == ROUGH else CURVE
    number = searched + ROUNDS * len(curve)
    run.time.end_s = run.least_end_s  # not as after the overload of a sweep
    found = run.time.slice_for(part, number, 0)
    sweep = run.sweeps.get("rate")
    rough = None if sweep is None else sweep.knee(run.objective)
    if found is None:
        if rough is not None:
            # The rough knee is that of other settings: what follows would not be of these.
            run.miss("There was no time for the rate of these settings")
            raise Stopped("no time for the rate of these settings, and for what follows it")
        raise ConfigError(
            f"too little time for three rounds: {run.asked.total_s:.0f} s are given, and "
            f"{run.time.least_s(part, number):.0f} s are the least"
        )
    rounds: dict[float, list[Round]] = {}

    def is_met(rate: float) -> bool:
        what, tries = f"searching the rate: {rate:.0f}/s", rounds.setdefault(rate, [])
        # Where nothing was met before, the first rounds may have been the slow ones.
        is_first = all(other >= rate for other in rounds)
        try:
            return run.is_met(base, what, rate, found, tries, NEARLY if not is_first else 0.0)
        except BrokenService:
            # Where a lower rate was met, it is the limit of a service that refuses the rest.
            if is_first:
                raise
            del rounds[rate]
            return False

    try:
        knee = search(is_met, first, run.asked.max_rate, factor, enough)
        if not knee and rough is not None:
            # What the settings answered in an overload may be more than they can do for long.
            # A low rate that was missed in that search would end the curve of this one.
            rounds.clear()
            knee = search(is_met, rough.offered_rate, run.asked.max_rate, factor, enough)
        if not knee:
            low = min(rounds)
            seen = run.meter.step(low, rounds[low])
            p99_s = seen.latencies.p99_s
            raise ConfigError(
                f"the objective is missed at {low:.0f}/s already: {seen.errors:.1%} errors, "
                f"p99 {'unknown' if p99_s is None else f'{p99_s * 1e3:.0f} ms'}"
            )
        rates = [run.at_most(share * knee) for share in curve]
        _take_turns(run, base, rates, found, rounds, knee)
        # The search has met it once, and a queue that grows is short at first.
        held = knee
        for _ in range(MAX_LOWER if curve else 0):
            if run.objective.is_met_by(run.meter.step(held, rounds[held])):
                break
            held *= LOWER
            _take_turns(run, base, [held], found, rounds, knee)
        # What was met once beyond it was chance.
        for rate in [rate for rate in rounds if rate > held and len(rounds[rate]) < ROUNDS]:
            if run.objective.is_met_by(run.meter.step(rate, rounds[rate])):
                del rounds[rate]
        if held >= run.asked.max_rate:
            run.warnings.append(
                f"The objective was still met at --max-rate, {held:.0f}/s: the knee is higher."
            )
    finally:
        steps = [run.meter.step(rate, one) for rate, one in sorted(rounds.items()) if one]
        measured = Sweep(name="rate", unit="requests a second", steps=steps, interleaved=True)
        # Where it has ended without a knee, the rough one says more.
        if steps and (rough is None or measured.knee(run.objective) is not None):
            run.sweeps["rate"] = measured
    step = measured.knee(run.objective)
    if step is None:
        raise ConfigError("no rate met the objective in all rounds: the figures vary too much")
    if part == ROUGH:
        return step
    at_knee = [one.observed for one in rounds[step.setting] if one.observed is not None]
    queued = mean([one.queued for one in at_knee] or [0.0])
    if queued > QUEUED and step.cpu_of_workers < choose.BUSY * run.cores:
        run.warnings.append(
            f"At the knee a worker waited for a processor for {queued:.0%} of the time, and the"
            f" workers used {step.cpu_of_workers:.1f} of {run.cores}: the generator, the "
            "database or something else on this machine had them."
        )
    if step.generator_limited:
        run.say_generator("At the knee")
    return step


def _take_turns(
    run: Run,
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
            run.say(f"rate, round {number + 1} of {ROUNDS}: {rate:.0f}/s")
            try:
                found = run.offer(base, rate, one)
                rounds[rate] = [*rounds.get(rate, []), found][-ROUNDS:]
            except BrokenService:
                # As in the search.
                if rate <= knee:
                    raise
                refused.add(rate)
                rounds.pop(rate, None)
