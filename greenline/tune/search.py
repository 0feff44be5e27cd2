"""
Search for the highest rate at which an objective is met, by doubling and bisection.

It does no measuring of its own, so that it is tried on functions in place of a service.
"""

from collections.abc import Callable

ENOUGH = 0.08
MAX_BISECTIONS = 5


def search(
    is_met: Callable[[float], bool],
    first: float,
    max_rate: float,
    factor: float = 2.0,
    enough: float = ENOUGH,
) -> float:
    """
    Return the highest rate that was tried and met.

    :param is_met: offers a rate, and says whether the objective is met.
    :param first: requests a second, float.
    :param max_rate: none is higher, float.
    :param factor: between two rates, until one is not met, float, default 2.
    :param enough: it ends when no more than this part of the rate that is met lies between it and
        one that is not, float, default 0.08.
    :returns: requests a second, float; 0: the first one is not met, nor one two factors below it.
    """
    met, missed, rate = 0.0, 0.0, min(first, max_rate)
    if not is_met(rate):
        missed, rate = rate, rate / factor**2
        if not is_met(rate):
            return 0.0
    met = rate
    while not missed and met < max_rate:
        rate = min(met * factor, max_rate)
        if is_met(rate):
            met = rate
        else:
            missed = rate
    for _ in range(MAX_BISECTIONS):
        if missed - met <= enough * met:
            break
        rate = (met + missed) / 2
        if is_met(rate):
            met = rate
        else:
            missed = rate
    return met
