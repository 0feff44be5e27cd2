"""Each promise of the Postgres pool has a cost in microseconds."""

import re

import pytest

from tests.helpers.support import IS_LONG, run


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 measures for minutes")
def test_each_promise_has_a_cost() -> None:
    """As docs/pools.md has it, on a Postgres of its own."""
    done = run(["python", "-m", "bench.costs"], {}, timeout_s=600)
    costs = re.findall(r"^(\S.*?) +([0-9.]+) us ", done.stdout, re.MULTILINE)
    assert len(costs) > 10
    assert all(float(cost) > 0 for _, cost in costs)
