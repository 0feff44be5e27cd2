"""The time of a measurement is divided, and never more than there is."""

import pytest

from greenline.tune.timetable import (
    MAX_WARM_UP_S,
    PARTS,
    ROUNDS,
    SECONDS_S,
    Timetable,
    thinned,
)


def timetable(total_s: float, start_s: float = 2.0) -> Timetable:
    found = Timetable(total_s, clock=lambda: 0.0)
    found.start_s = start_s
    return found


@pytest.mark.parametrize("part", PARTS)
def test_the_rounds_of_a_part_fit_into_its_share(part: str) -> None:
    """With the starts of the servers."""
    one = timetable(600).slice_for(part, 12, 9)
    assert one is not None
    assert 12 * (one.total_s + 1) + 9 * 2.0 <= 600 * PARTS[part] + 1e-6
    assert one.seconds >= SECONDS_S


def test_a_third_of_a_round_is_its_warm_up() -> None:
    """Within its limits."""
    short, middle, long = (
        timetable(part_s / PARTS["rate"]).slice_for("rate", 12, 0) for part_s in (33, 59, 198)
    )
    assert short is not None
    assert middle is not None
    assert long is not None
    assert short.warm_up_s == pytest.approx(short.total_s / 3)
    assert middle.warm_up_s == pytest.approx(middle.total_s / 3)
    assert long.warm_up_s == MAX_WARM_UP_S < long.total_s / 3


def test_a_part_without_time_is_not_begun() -> None:
    """A round of less than a second says nothing; what would be enough is said."""
    short = timetable(30)
    assert short.slice_for("rate", 24, 0) is None
    assert timetable(short.least_s("rate", 24)).slice_for("rate", 24, 0) is not None


def test_with_little_time_fewer_settings_are_tried() -> None:
    """The first and the last stay."""
    settings = [1.0, 2.0, 4.0, 8.0, 16.0]
    many = timetable(600).fitting("pool", settings)
    assert many is not None
    assert many[0] == settings
    few = timetable(170).fitting("pool", settings)
    assert few is not None
    assert 2 <= len(few[0]) < 5
    assert (few[0][0], few[0][-1]) == (1.0, 16.0)
    assert ROUNDS * len(few[0]) * (few[1].total_s + 1 + 2.0) <= 170 * PARTS["pool"] + 1e-6
    slow = timetable(60)
    assert slow.slice_for("pool", 2 * ROUNDS, 2 * ROUNDS) is None
    fewest = slow.fitting("pool", settings)
    assert fewest is not None
    assert fewest[0] == [1.0, 16.0]
    assert timetable(40).fitting("pool", settings) is None


@pytest.mark.parametrize(
    ("total_s", "kept", "found"),
    [(320, None, [1, 5, 8]), (320, 4.0, [1, 4, 8]), (320, 8.0, [1, 5, 8]), (80, 4.0, [4, 8])],
)
def test_one_setting_may_be_kept(total_s: float, kept: float | None, found: list[float]) -> None:
    """In place of the nearest one, so that the others are spread."""
    fitting = timetable(total_s).fitting("pool", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], kept)
    assert fitting is not None
    assert fitting[0] == found


def test_thinned_settings_are_spread_evenly() -> None:
    """One of them is the largest."""
    assert thinned([1, 2, 3, 4, 5], 3) == [1, 3, 5]
    assert thinned([1, 2], 5) == [1, 2]
    assert thinned([1, 2, 3], 1) == [3]
