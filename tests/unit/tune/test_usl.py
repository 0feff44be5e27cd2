"""The Universal Scalability Law, on figures that have known parameters, or none."""

import random

import pytest

from greenline.tune import usl

NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16)
# Contention alone, both, and coherency with a peak below the largest number.
KNOWN = [(0.2, 0.0005, 100.0), (0.05, 0.002, 412.5), (0.1, 0.02, 1_000.0)]


def points(
    sigma: float, kappa: float, gamma: float, noise: float = 0.0
) -> list[tuple[float, float]]:
    chance = random.Random(21)
    return [
        (number, usl.rate(number, sigma, kappa, gamma) * (1 + noise * chance.uniform(-1, 1)))
        for number in NUMBERS
    ]


@pytest.mark.parametrize(("sigma", "kappa", "gamma"), KNOWN)
def test_known_parameters_are_recovered(sigma: float, kappa: float, gamma: float) -> None:
    """Within 5 %, and so is what the fit predicts for twice as many."""
    found = usl.fit(points(sigma, kappa, gamma), "pool")
    assert (found.of, found.points, found.is_usable, found.note) == ("pool", 8, True, "")
    assert found.sigma == pytest.approx(sigma, rel=0.05)
    assert found.kappa == pytest.approx(kappa, rel=0.05)
    assert found.gamma == pytest.approx(gamma, rel=0.05)
    assert found.r_squared == pytest.approx(1)
    assert usl.predicted(found, 32) == pytest.approx(usl.rate(32, sigma, kappa, gamma), rel=0.05)


@pytest.mark.parametrize(("sigma", "kappa", "gamma"), KNOWN)
def test_what_rounds_scatter_is_no_reason_to_refuse(
    sigma: float, kappa: float, gamma: float
) -> None:
    """With 1 % of noise in each rate the prediction is within 5 %."""
    found = usl.fit(points(sigma, kappa, gamma, noise=0.01))
    assert found.is_usable, found.note
    assert usl.predicted(found, 32) == pytest.approx(usl.rate(32, sigma, kappa, gamma), rel=0.05)


def test_a_linear_law_has_no_penalties() -> None:
    """Both are zero, not negative: more workers never do better than each alone."""
    found = usl.fit(points(0, 0, 300.0))
    assert (found.sigma, found.kappa) == (pytest.approx(0, abs=1e-4), pytest.approx(0, abs=1e-4))
    assert usl.predicted(found, 32) == pytest.approx(9_600, rel=0.01)


@pytest.mark.parametrize(
    "few",
    [[], points(*KNOWN[0])[:4], [*points(*KNOWN[0])[:4], (4, 220.0)],
     [*points(*KNOWN[0])[:4], (6, 0.0)]],
    ids=["none", "four", "one of them twice", "one without an answer"],
)  # fmt: skip
def test_fewer_than_five_points_are_not_fitted(few: list[tuple[float, float]]) -> None:
    """Three parameters go through four points whatever they are."""
    found = usl.fit(few)
    assert (found.sigma, found.r_squared, found.is_usable) == (None, None, False)
    assert found.note == f"{min(len(few), 4)} points: a fit needs 5"
    assert usl.predicted(found, 8) is None


@pytest.mark.parametrize(
    ("rates", "why"),
    [((100, 30, 250, 40, 300, 20, 310, 35), "of the variance"),
     ((100, 195, 280, 460, 500, 890, 1_000, 1_900), "uncertain by")],
    ids=["noise", "what comes next is open"],
)  # fmt: skip
def test_a_poor_fit_predicts_nothing(rates: tuple[float, ...], why: str) -> None:
    """Its parameters are shown, with the reason not to use them."""
    found = usl.fit(list(zip(NUMBERS, rates, strict=True)))
    assert why in found.note
    assert not found.is_usable
    assert found.sigma is not None
    assert usl.predicted(found, 32) is None
