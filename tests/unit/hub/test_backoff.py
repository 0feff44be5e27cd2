"""greenline.hub.backoff: pauses that double, within their limits, at random."""

import pytest

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.hub.backoff import Backoff

SAMPLES = 200


@pytest.mark.parametrize("jitter", [0, 0.5, 1])
def test_pauses_double_up_to_the_longest(jitter: float) -> None:
    """Each sample lies in its window, and the samples of a window fill it."""
    backoffs = [Backoff(0.01, 0.05, jitter) for _ in range(SAMPLES)]
    for longest_s in (0.01, 0.02, 0.04, 0.05, 0.05):
        pauses_s = [backoff.next_s() for backoff in backoffs]
        random_s = jitter * longest_s
        assert longest_s - random_s <= min(pauses_s) <= longest_s - 0.9 * random_s
        assert longest_s - 0.1 * random_s <= max(pauses_s) <= longest_s
        assert {backoff.is_at_max for backoff in backoffs} == {longest_s == 0.05}


def test_the_deadline_ends_a_pause() -> None:
    """Also one that would take a minute."""
    with pytest.raises(DeadlineExceeded), deadline.limit(0.05):
        Backoff(60.0, 60.0).wait()
