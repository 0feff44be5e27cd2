"""When the load generator ends by itself."""

import pytest

from greenline.tune.generator import MIN_JUDGED, Generator, Plan
from greenline.tune.load import Request


@pytest.mark.parametrize("status", [0, 302, 404, 500, 503])
@pytest.mark.parametrize("is_spared", [True, False], ids=["spared", "not spared"])
def test_a_spared_server_is_broken_by_any_error(status: int, is_spared: bool) -> None:
    """More than half of the last answers; one that was started to be overloaded is not spared."""
    plan = Plan("", [Request("GET", "/")], {}, 1.0, 0.0, 1.0, 1.0, is_spared=is_spared)
    generator = Generator(plan, 1)
    for number in range(MIN_JUDGED):
        generator._judge(200 if number < MIN_JUDGED // 2 else status)
    assert not generator._is_broken
    for number in range(MIN_JUDGED):
        generator._judge(200 if number < MIN_JUDGED // 2 - 1 else status)
    assert generator._is_broken == is_spared
