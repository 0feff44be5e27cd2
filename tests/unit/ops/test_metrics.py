"""The metrics of pools and caches."""

from collections.abc import Iterable

from prometheus_client import Metric

from greenline.ops import metrics


def samples(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """Return the values by the family's name and the labels."""
    return {
        (family.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_counts_of_a_pool_stay_while_no_worker_has_it() -> None:
    """After a reload, until one of the new workers connects."""
    totals = {("shop", "requests_num"): 7, ("shop", "usage_ms"): 1500, ("deadlines",): 2}
    found = samples(metrics._pools(totals))
    assert found["greenline_pool_checkouts", "shop"] == 7
    assert found["greenline_pool_usage_seconds", "shop"] == 1.5
    assert {pool for _, pool in found} == {"shop"}
    assert not any(name == "greenline_pool_connections_max" for name, _ in found)


def test_the_counts_and_values_of_each_cache_have_its_name() -> None:
    """Without one there are none."""
    totals = {("cache shop", "hits"): 7, ("cache shop", "values"): 2, ("cache x", "loads"): 1}
    found = samples(metrics._caches(totals))
    assert found["greenline_cache_hits", "shop"] == 7
    assert found["greenline_cache_values", "shop"] == 2
    assert found["greenline_cache_loads", "x"] == 1
    assert found["greenline_cache_hits", "x"] == 0
    assert list(metrics._caches({("shop", "size"): 1})) == []
    assert metrics.pool_names(totals) == []
