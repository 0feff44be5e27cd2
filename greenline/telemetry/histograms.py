"""
The buckets of a latency histogram, and what can be read from their counts. Arithmetic only.

The bounds grow by 2 ** (1 / 8), which is 9 %, from 64 us to 18 minutes: a quantile that is read
from the counts differs from the exact one by at most 5 %, as in an HDR histogram.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

IN_AN_OCTAVE = 8
MIN_EXPONENT, MAX_EXPONENT = -14, 10  # of 2, in seconds
BUCKETS = (MAX_EXPONENT - MIN_EXPONENT) * IN_AN_OCTAVE + 2  # with one below and one above them
# The upper bound of each bucket but the last, in seconds; a value that is equal to it is in it.
BOUNDS_S = tuple(2 ** (MIN_EXPONENT + number / IN_AN_OCTAVE) for number in range(BUCKETS - 1))


# Return the number of the bucket that a duration belongs to, float seconds.
bucket_of = partial(bisect_left, BOUNDS_S)


def counts_of(durations_s: Sequence[float]) -> dict[int, int]:
    """
    Return how many of *durations_s* each bucket has, without those that have none.

    :param durations_s: seconds, float, in any order.
    """
    # Sorted, each bucket is a slice: a quarter of the time of a search for each duration.
    found, first = {}, 0
    ordered = sorted(durations_s)
    while first < len(ordered):
        bucket = bucket_of(ordered[first])
        is_last = bucket == BUCKETS - 1
        behind = len(ordered) if is_last else bisect_right(ordered, BOUNDS_S[bucket], first)
        found[bucket] = behind - first
        first = behind
    return found


def quantile(counts: Sequence[int], share: float) -> float | None:
    """
    Return the duration that *share* of all do not exceed, within 5 %; None if there are none.

    :param counts: by bucket, int.
    :param share: from 0 to 1, float; 0.99 for the p99.
    :returns: seconds, float; infinite where it is beyond the last bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank = share * total
    number = next(each for each, seen in enumerate(accumulate(counts)) if seen and seen >= rank)
    if number == BUCKETS - 1:
        return float("inf")
    # The geometric mean of its bounds is nearest to both.
    return BOUNDS_S[number] * 2 ** (-0.5 / IN_AN_OCTAVE) if number else BOUNDS_S[0]


def cumulative(counts: Sequence[int], every: int) -> list[tuple[float, int]]:
    """
    Return the upper bound of each *every*-th bucket, and how many are at most that long.

    :param counts: by bucket, int.
    :param every: buckets, int.
    :returns: pairs of seconds, float, and a count, int; the last bound is infinite.
    """
    found, seen = [], 0
    for number, count in enumerate(counts):
        seen += count
        if number % every == 0 and number < BUCKETS - 1:
            found.append((BOUNDS_S[number], seen))
    return [*found, (float("inf"), seen)]
