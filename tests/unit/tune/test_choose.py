"""What is recommended from steps whose figures are known."""

import pytest
from msgspec.structs import replace

from greenline.budget.plan import Deployment, PostgresFacts, postgres_plan
from greenline.tune import capacity, choose
from greenline.tune.results import Step
from tests.helpers.tuned import step


def steps(rates: dict[float, float], noise: float = 0.0) -> list[Step]:
    return [step(setting, rate, noise=noise) for setting, rate in rates.items()]


@pytest.mark.parametrize(
    ("rates", "noise", "expected"),
    [
        ({1: 100, 2: 200, 4: 390, 8: 400, 16: 400}, 0.0, 4),
        ({1: 100, 2: 200, 4: 370, 8: 400, 16: 400}, 0.0, 8),
        ({1: 400, 2: 390, 4: 380}, 0.0, 1),
        ({1: 100, 2: 200, 4: 370, 8: 400}, 0.1, 4),
        ({1: 395, 2: 400}, 0.5, 1),
    ],
    ids=["at 95 %", "not at 92 %", "more is worse", "the noise is larger", "a coin"],
)
def test_the_smallest_that_is_as_good_is_chosen(
    rates: dict[float, float], noise: float, expected: float
) -> None:
    """Within 5 % of the best, or within the noise."""
    found = steps(rates, noise)
    assert choose.smallest(found).setting == expected
    assert choose.pool(found, 2).environment == {"POSTGRES_POOL_SIZE": str(expected)}
    assert choose.workers(found, 2).environment == {"WEB_CONCURRENCY": str(expected)}


def test_a_difference_within_the_noise_is_said() -> None:
    """And one that is not is not."""
    assert "vary by" in choose.pool(steps({4: 350, 8: 400}, 0.2), 2).measured
    assert "vary by" not in choose.pool(steps({4: 400, 8: 401}, 0.2), 2).measured


def test_littles_law_is_the_rate_times_the_time() -> None:
    """500 a second, each of 12 ms, are 6 at once."""
    knee = step(500, 500)
    assert choose.in_progress(knee) == pytest.approx(500 * 0.012)
    unseen = replace(knee, shares=None)
    assert choose.in_progress(unseen) == pytest.approx(500 * 0.01)


def test_auto_is_kept_where_no_number_is_better() -> None:
    """It follows what changes; a number is taken only where it gives more."""
    knee, auto = step(500, 500), step(12, 390)
    kept = choose.limit(steps({4: 300, 8: 400}), auto, knee, 2, 0.1)
    assert kept.environment == {"GREENLINE_MAX_IN_PROGRESS": "auto", "GREENLINE_MAX_WAIT": "0.1"}
    assert kept.value == 12
    better = choose.limit(steps({4: 300, 8: 600}), auto, knee, 2, 0.1)
    assert better.environment["GREENLINE_MAX_IN_PROGRESS"] == "8"


def test_more_workers_than_processors_are_for_requests_that_wait() -> None:
    """Not for those that compute, and not where the processors are used up."""
    waiting = step(500, 500, cpu=1.0, postgres_s=0.05)
    assert choose.waits(waiting, 2)
    assert not choose.waits(replace(waiting, cpu_of_workers=1.95), 2)
    assert not choose.waits(step(500, 500, cpu=1.0, postgres_s=0.0), 2)
    assert "Postgres" in choose.binding(waiting, 2)
    assert "processors bind" in choose.binding(replace(waiting, cpu_of_workers=1.95), 2)


def test_worker_connections_are_a_sum_to_check() -> None:
    """4 nginx processes keep 16 each, 3 in progress are doubled, and 100 are to spare."""
    found = choose.worker_connections(step(500, 500), 16, 4, 2, 10.0)
    assert found.value == 200  # of 64 + 6 + 100
    assert "64 that nginx keeps idle (4 x 16), 6 for 3.0 requests" in found.measured


@pytest.mark.parametrize(("rate", "kept"), [(500, 16), (2_000, 24)])
def test_nginx_keeps_what_is_in_progress_at_once(rate: float, kept: float) -> None:
    """Requests of 12 ms: 6 at once need no more than the least, 24 need 24."""
    assert choose.keepalive(step(rate, rate)).value == kept


def test_an_idle_socket_costs_the_slope_of_the_memory() -> None:
    """In KiB, whatever the worker has without any."""
    found = [step(count, 0, memory_mib=80 + count * 10 / 1024) for count in (0, 100, 500, 1000)]
    assert choose.idle_cost_kib(found) == pytest.approx(10)
    recommended = choose.memory(step(500, 500, memory_mib=80), 1024, 10.0)
    assert recommended.value == 110


def test_max_connections_are_recommended_where_they_bind() -> None:
    """What four workers of 20 need by the budget, while a deploy rolls."""
    needed = capacity.needed_for(20, Deployment(4))
    assert postgres_plan(PostgresFacts(needed), Deployment(4)).worker == 20
    assert postgres_plan(PostgresFacts(needed - 1), Deployment(4)).worker == 19
    found = choose.max_connections(20, 4, needed, 100)
    assert found is not None
    assert found.value == needed
    assert choose.max_connections(20, 4, needed, needed) is None
    assert choose.max_connections(20, 4, needed, None) is None
