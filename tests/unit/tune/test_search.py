"""The search for the highest rate, on a service that is a number."""

import pytest

from greenline.tune.search import search


class Service:
    """Meets the objective up to a rate."""

    def __init__(self, up_to: float) -> None:
        self.up_to = up_to
        self.tried: list[float] = []

    def __call__(self, rate: float) -> bool:
        self.tried.append(rate)
        return rate <= self.up_to


@pytest.mark.parametrize("up_to", [30, 100, 123, 640, 5_000])
@pytest.mark.parametrize("first", [25, 100])
def test_the_rate_is_found_within_a_tenth(up_to: float, first: float) -> None:
    """In a dozen rounds, from below and from above."""
    service = Service(up_to)
    found = search(service, first, 100_000)
    assert found in service.tried
    assert 0.9 * up_to <= found <= up_to
    assert len(service.tried) <= 14


def test_no_rate_is_above_the_limit() -> None:
    """--max-rate is kept, and reached."""
    service = Service(5_000)
    assert search(service, 100, 1_100) == 1_100
    assert max(service.tried) == 1_100


def test_a_service_that_never_meets_it_is_tried_twice() -> None:
    """Then there is no rate."""
    service = Service(0)
    assert search(service, 100, 1_000) == 0
    assert service.tried == [100, 25]


def test_a_rough_search_ends_sooner() -> None:
    """Within a quarter, from below."""
    fine, rough = Service(1_700), Service(1_700)
    search(fine, 200, 100_000)
    found = search(rough, 200, 100_000, enough=0.25)
    assert 1_700 / 1.25 <= found <= 1_700
    assert len(rough.tried) < len(fine.tried)
