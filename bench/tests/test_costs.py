"""Each promise of the Postgres pool has a cost in microseconds."""

import os
import re
import subprocess
import sys

import pytest

from tests.helpers.support import CHECKOUT, environ

IS_LONG = os.environ.get("GREENLINE_LONG_TESTS") == "1"


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 measures for minutes")
def test_each_promise_has_a_cost() -> None:
    """As docs/pools.md has it, on a Postgres of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.costs"],
        cwd=CHECKOUT, env=environ({}), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    costs = re.findall(r"^(\S.*?) +([0-9.]+) us ", done.stdout, re.MULTILINE)
    assert len(costs) > 10
    assert all(float(cost) > 0 for _, cost in costs)
