"""What a report says of two results."""

import pytest

from greenline.tune import report
from tests.helpers.tuned import result


@pytest.mark.parametrize(
    ("faster", "change"),
    [(1.07, "+7.0%, within the noise (8 %)"), (1.09, "+9.0%"), (1.0, "none")],
)
def test_what_the_search_cannot_tell_is_no_change(faster: float, change: str) -> None:
    """Rounds that are all the same have a resolution too; that of a p99 is not known."""
    rate, p99, *_ = report._differences(result(), result(faster=faster))
    assert (rate.name, rate.change) == ("rate of the knee", change)
    assert (p99.name, p99.change) == ("p99 at the knee", "-")
