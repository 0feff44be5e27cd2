"""greenline.telemetry.histograms: quantiles from the buckets are those of an exact list."""

import math
import random
from itertools import pairwise

import pytest

from greenline.telemetry.histograms import BOUNDS_S, BUCKETS, bucket_of, cumulative, quantile

SHARES = (0.01, 0.5, 0.9, 0.99, 0.999)


def counted(durations_s: list[float]) -> list[int]:
    counts = [0] * BUCKETS
    for each in durations_s:
        counts[bucket_of(each)] += 1
    return counts


@pytest.mark.parametrize("middle_s", [0.0003, 0.02, 1.5, 40.0])
def test_a_quantile_is_within_5_percent(middle_s: float) -> None:
    """Of what an exact list has."""
    numbers = random.Random(7)
    exact = sorted(numbers.lognormvariate(math.log(middle_s), 0.7) for _ in range(20_000))
    counts = counted(exact)
    for share in SHARES:
        right = exact[math.ceil(share * len(exact)) - 1]
        assert quantile(counts, share) == pytest.approx(right, rel=0.05)


def test_bounds_grow_by_at_most_10_percent() -> None:
    """From 61 us to 17 minutes."""
    assert all(1 < second / first <= 1.1 for first, second in pairwise(BOUNDS_S))
    assert BOUNDS_S[0] == 2**-14
    assert BOUNDS_S[-1] == 1024


def test_what_is_beyond_the_bounds() -> None:
    """The shortest and the longest are counted, and nothing has no quantile."""
    assert quantile([0] * BUCKETS, 0.5) is None
    assert quantile(counted([0.0]), 0.5) == BOUNDS_S[0]
    assert quantile(counted([1e6]), 0.5) == math.inf


def test_the_cumulative_counts() -> None:
    """Each bound has what is at most as long; the last one is infinite and has all."""
    found = cumulative(counted([0.0, 1.0, 1.5, 1e6]), every=8)
    assert found[0] == (2**-14, 1)
    assert dict(found)[1.0] == 2
    assert dict(found)[2.0] == 3
    assert found[-1] == (math.inf, 4)
    assert [count for _, count in found] == sorted(count for _, count in found)
