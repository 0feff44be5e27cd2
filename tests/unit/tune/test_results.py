"""The figures of tune on disk, and the knee of a sweep."""

from pathlib import Path

import msgspec
import pytest

from greenline.errors import ConfigError
from greenline.tune import report, results, screen
from greenline.tune.results import Objective
from tests.helpers import tuned

OBJECTIVE = Objective(p99_s=0.2, errors=0.001)


def test_a_result_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """With every part that is optional, and without."""
    for whole in (tuned.result(), tuned.result(target="\N{SNOWMAN}")):
        results.write(whole, tmp_path / "tune.json")
        assert results.read(tmp_path / "tune.json") == whole


@pytest.mark.parametrize(
    ("text", "line"),
    [(None, "No such file"), ("", "not a result of"),
     ('{"version": "1"}', "missing required field"), ("[]", "Expected `object`")],
    ids=["no file", "empty", "another form", "a list"],
)  # fmt: skip
def test_what_is_no_result_is_one_line(tmp_path: Path, text: str | None, line: str) -> None:
    """It begins with the name of the file."""
    path = tmp_path / "tune.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=line) as raised:
        results.read(path)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("p99s", "knee"),
    [((0.1, 0.15, 0.3), 200.0), ((0.1, 0.3, 0.15), 100.0), ((0.3, 0.1, 0.1), None),
     ((0.1, 0.1, 0.1), 300.0), ((0.1, None, 0.1), 100.0), ((), None)],
    ids=["the second", "none after a break", "the first breaks", "all hold", "unknown", "empty"],
)  # fmt: skip
def test_the_knee_is_the_last_before_the_first_that_breaks(
    p99s: tuple[float | None, ...], knee: float | None
) -> None:
    """Whatever the order of the steps; a p99 that is not known is none that holds."""
    rates = (100.0, 200.0, 300.0)
    steps = [tuned.step(rate, rate, p99_s=p99) for rate, p99 in zip(rates, p99s, strict=False)]
    found = tuned.sweep("rate", "requests a second", steps[::-1]).knee(OBJECTIVE)
    assert (found and found.setting) == knee


def test_a_step_meets_the_objective_if_it_keeps_up() -> None:
    """What waits at the end of a round was not late yet; so it is no knee either."""
    assert OBJECTIVE.is_met_by(tuned.step(500, 480, offered=500))
    behind = tuned.step(500, 470, offered=500)
    assert not OBJECTIVE.is_met_by(behind)
    assert not OBJECTIVE.is_met_by(tuned.step(500, 500, p99_s=0.3))
    assert not OBJECTIVE.is_met_by(msgspec.structs.replace(tuned.step(500, 500), errors=0.002))
    assert tuned.sweep("rate", "requests a second", [behind]).knee(OBJECTIVE) is None


def test_the_spread_is_the_range_of_the_rounds() -> None:
    """As a part of the step's rate; one round has none."""
    alone = msgspec.structs.replace(tuned.step(1, 100.0), rounds=[100.0])
    assert alone.spread is None
    assert report._row(alone)[3] == screen._row(alone)[3] == "-"
    assert tuned.step(1, 100.0, noise=0.1).spread == pytest.approx(0.2)
    assert tuned.step(1, 0.0).spread == 0
