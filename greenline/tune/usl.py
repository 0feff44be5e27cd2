"""
Fit the Universal Scalability Law to a sweep (N. Gunther, Guerrilla Capacity Planning, 2007):

    rate(n) = gamma n / (1 + sigma (n - 1) + kappa n (n - 1))

gamma is the rate of one, sigma what they wait for each other (contention), kappa what they do to
stay coherent: with kappa > 0 there is a number after which more of them do less.
"""

from collections.abc import Sequence
from typing import Any

from greenline.lazy import needs_extra
from greenline.tune.results import Fit, SweepName

MIN_POINTS = 5
MIN_R_SQUARED = 0.9
# Of the rate that the fit predicts for twice the largest point, one standard deviation.
MAX_UNCERTAINTY = 0.1


def fit(points: Sequence[tuple[float, float]], of: SweepName = "workers") -> Fit:
    """
    Return the fit to *points*, or why there is none, or why it predicts nothing.

    :param points: the number (workers, connections) and the rate of each step.
    :param of: the name of the sweep, str, default "workers".
    """
    different = len({number for number, rate in points if rate > 0})
    if different < MIN_POINTS:
        note = f"{different} points: a fit needs {MIN_POINTS}"
        return Fit(of=of, points=len(points), note=note, is_usable=False)
    with needs_extra("tune"):
        import numpy
        from lmfit import Model

    numbers, rates = (numpy.array(values, float) for values in zip(*points, strict=True))
    model = Model(rate, independent_vars=["n"])
    parameters = model.make_params(
        sigma={"value": 0.1, "min": 0},
        kappa={"value": 0.001, "min": 0},
        gamma={"value": float((rates / numbers).max()), "min": 0},
    )
    # Weights, since the noise of a rate is a part of it. This method keeps its estimate of the
    # uncertainty where a parameter is at its bound.
    weights = 1 / rates.clip(min=rates.max() / 1_000)
    done = model.fit(rates, parameters, n=numbers, weights=weights, method="least_squares")
    note = _doubt(done, 2 * numbers.max(keepdims=True))
    return Fit(
        of=of,
        sigma=float(done.best_values["sigma"]),
        kappa=float(done.best_values["kappa"]),
        gamma=float(done.best_values["gamma"]),
        r_squared=float(done.rsquared),
        points=len(points),
        note=note,
        is_usable=not note,
    )


def rate(n: Any, sigma: float, kappa: float, gamma: float) -> Any:
    """Return the rate of *n*, a number or an array of them."""
    return gamma * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))


def predicted(fit: Fit, number: float) -> float | None:
    """Return the rate that *fit* predicts for *number*; None if it may not be used for that."""
    if not fit.is_usable or fit.sigma is None or fit.kappa is None or fit.gamma is None:
        return None
    return float(rate(number, fit.sigma, fit.kappa, fit.gamma))


def _doubt(done: Any, far: Any) -> str:
    """Return why the fit must not be used as far as *far*, an array of one; empty if it may."""
    if not done.success or done.covar is None:
        return f"the fit has failed: {done.message}"
    if done.rsquared < MIN_R_SQUARED:
        return f"it explains {done.rsquared:.0%} of the variance, and {MIN_R_SQUARED:.0%} is needed"
    uncertain = float((done.eval_uncertainty(n=far) / done.eval(n=far))[0])
    if not uncertain <= MAX_UNCERTAINTY:  # not a number, too
        return (
            f"what it predicts for {far[0]:g} is uncertain by {uncertain:.0%}, and at most "
            f"{MAX_UNCERTAINTY:.0%} is allowed"
        )
    return ""
