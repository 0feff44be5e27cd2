"""Which part of a wait the hub was late."""

from math import inf

import pytest

from greenline.hub import lateness

NEVER = -inf, 0.0


@pytest.mark.parametrize(
    ("last", "due_s", "late_s"),
    [
        (NEVER, 11.1, 0.0),
        (NEVER, 10.6, 0.4),
        (NEVER, 9.0, 1.0),
        ((10.99, 0.3), 11.1, 0.3),
        ((10.99, 5.0), 11.1, 0.99),
        ((10.5, 0.3), 11.1, 0.0),
        ((9.9, 0.3), 11.1, 0.0),
    ],
    ids=["in time", "late now", "late all the time", "late until just now",
         "late from before the wait", "late in the middle", "late before the wait"],
)  # fmt: skip
def test_only_the_end_of_a_wait_is_the_hubs(
    last: tuple[float, float], due_s: float, late_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait from 10 to 11 s: an answer that comes after a block was not kept by it."""
    monkeypatch.setattr(lateness, "last", last)
    monkeypatch.setattr(lateness, "due_s", due_s)
    assert lateness.at_end_of(10.0, 11.0) == pytest.approx(late_s)
