"""The parts of a request's time, and their sum beside the whole."""

import re

from tests.helpers.forms import in_the_long_form
from tests.helpers.support import run

PARTS = ("parse", "environ", "limiter, counts, log", "Flask", "response", "write")


@in_the_long_form
def test_each_part_has_a_cost_and_all_of_them_are_summed_up() -> None:
    """One run measures all, and what it adds up is what it printed."""
    done = run(["python", "-m", "bench.request_costs"], {})
    lines = re.findall(r"^(.*?) +(-?[0-9.]+) us$", done.stdout, re.MULTILINE)
    reported_us = {name: float(value) for name, value in lines}
    assert len(reported_us) == len(done.stdout.splitlines()) == len(PARTS) + 5
    before_sum = list(reported_us)[: list(reported_us).index("sum")]
    assert before_sum[1:] == list(PARTS)
    assert all(reported_us[name] > 0 for name in before_sum)
    assert abs(sum(reported_us[name] for name in before_sum) - reported_us["sum"]) < 0.5
    assert abs(reported_us["sum"] + reported_us["the rest"] - reported_us["the whole"]) < 0.2
