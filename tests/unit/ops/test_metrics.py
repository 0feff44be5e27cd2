"""The metrics of pools."""

from greenline.ops import metrics


def test_the_counts_of_a_pool_stay_while_no_worker_has_it() -> None:
    """After a reload, until one of the new workers connects."""
    totals = {("shop", "requests_num"): 7, ("shop", "usage_ms"): 1500, ("deadlines",): 2}
    found = {
        (family.name, *sample.labels.values()): sample.value
        for family in metrics._pools(totals)
        for sample in family.samples
    }
    assert found["greenline_pool_checkouts", "shop"] == 7
    assert found["greenline_pool_usage_seconds", "shop"] == 1.5
    assert {pool for _, pool in found} == {"shop"}
    assert not any(name == "greenline_pool_connections_max" for name, _ in found)
