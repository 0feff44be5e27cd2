"""Start what is recommended, and what gunicorn's documentation has, and compare."""

from greenline.doctor.serving import TrialError
from greenline.tune import choose
from greenline.tune.measure import Round
from greenline.tune.results import Verification
from greenline.tune.run import Run, Stopped
from greenline.tune.server import WORKER_CONNECTIONS, Configuration
from greenline.tune.timetable import ROUNDS, Slice

PROOF = (0.9, 1.0, 1.1)  # of the predicted rate
DEFAULTS = (PROOF[-1],)  # the same for gunicorn's defaults, which may do more
WITHIN = 0.15


def prove(run: Run, recommended: Configuration, predicted: float) -> Verification | None:
    """
    Start what is recommended, and what gunicorn's documentation has, and compare.

    :param run: the run.
    :param recommended: the settings.
    :param predicted: requests a second, float.
    :returns: None: there was no time.
    """
    offers = ROUNDS * (len(PROOF) + len(DEFAULTS))
    one = run.time.slice_for("proof", offers, 2 * ROUNDS)
    if one is None:
        run.miss("There was no time to prove it")
        return None
    # Twice the cores and one, and no limit of requests, of time or of the pool.
    defaults = Configuration(2 * run.cores + 1, pool=0, limit=WORKER_CONNECTIONS)
    ours: dict[float, list[Round]] = {share: [] for share in PROOF}
    theirs: dict[float, list[Round]] = {share: [] for share in DEFAULTS}
    is_compared = True
    try:
        for number in range(ROUNDS):
            run.say(f"proof, round {number + 1} of {ROUNDS}")
            _offer_each(run, recommended, ours, predicted, one)
            if not is_compared:
                continue
            run.say(f"gunicorn's defaults, round {number + 1} of {ROUNDS}")
            try:
                _offer_each(run, defaults, theirs, predicted, one)
            except TrialError as error:
                is_compared = False
                run.warnings.append(f"The defaults of gunicorn did not serve: {error}.")
    except Stopped as error:
        given = "gunicorn's defaults" if len(ours[1.0]) == ROUNDS else "the recommended settings"
        run.miss(f"The proof has not all of {ROUNDS} rounds of {given}: {error}")
        if not ours[1.0]:
            return None
    steps = [run.meter.step(float(recommended.workers), rounds) for rounds in ours.values()]
    defaulted = [
        run.meter.step(float(defaults.workers), rounds) for rounds in theirs.values() if rounds
    ]
    met = [one for one in steps if run.objective.is_met_by(one)]
    best = choose.best(met or steps)
    if not met:
        run.fail("The proof missed the objective at each rate.")
    within = (best.good_rate - predicted) / predicted
    found = Verification(
        predicted_rate=predicted,
        measured_rate=best.good_rate,
        spread=best.spread,
        within=within,
        against_defaults=choose.best(defaulted) if defaulted else None,
        ours=choose.best(steps),
        met=bool(met),
    )
    if abs(within) > WITHIN:
        run.warnings.append(
            f"The proof missed: {predicted:.0f}/s were predicted, and {best.good_rate:.0f}/s "
            "measured. The figures vary too much, or the machine does something else."
        )
    return found


def _offer_each(
    run: Run,
    configuration: Configuration,
    rounds: dict[float, list[Round]],
    predicted: float,
    one: Slice,
) -> None:
    """Offer to a new server each of the shares of *predicted* that *rounds* has, once."""
    with run.started(configuration) as running:
        found = [run.offer(running, run.at_most(each * predicted), one) for each in rounds]
    for each, came in zip(rounds.values(), found, strict=True):
        each.append(came)
