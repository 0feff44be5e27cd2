"""What is compared of pools that hold too much, and what makes a run invalid."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench import held, report
from bench.held import (
    CLIENTS,
    MAX_CONNECTIONS,
    PAIRS,
    WORKERS,
    Application,
    Held,
)
from embedded.postgres import temporary
from tests.helpers.forms import in_the_long_form


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Held, report.Report]]:
    """A bench of one short round."""
    monkeypatch.setattr(held, "ROUNDS", 1)
    monkeypatch.setattr(held, "SECONDS", 0.5)
    held.allow_files()
    found = report.Report("held", tmp_path)
    with ExitStack() as stack:
        postgres = stack.enter_context(temporary(MAX_CONNECTIONS))
        yield Held(found, postgres, stack), found


@in_the_long_form
@pytest.mark.parametrize(("holding", "fitting"), PAIRS)
def test_one_that_holds_too_many_is_compared_with_one_that_does_not(
    bench: tuple[Held, report.Report],
    tmp_path: Path,
    holding: Application,
    fitting: Application,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All requests have their answers; a round of half a second shows it."""
    monkeypatch.setattr(held, "ROUNDS", 1)
    monkeypatch.setattr(held, "SECONDS", 0.5)
    mine, found = bench
    assert WORKERS * fitting.connections < mine.plan.host < WORKERS * holding.connections
    assert len(mine.compare(holding, fitting)) == 2
    assert found.problems == []
    found.finish()
    rows = json.loads(next(tmp_path.glob("held*.json")).read_text())["rows"]
    assert [(row["work"], row["who"]) for row in rows] == [
        ("work", holding.name),
        ("work", fitting.name),
    ]


@in_the_long_form
def test_requests_find_their_own_state(bench: tuple[Held, report.Report]) -> None:
    """As many as were asked for."""
    mine, found = bench
    (verdict,) = mine.check(2 * CLIENTS)
    assert verdict.kept
    assert found.problems == []


@in_the_long_form
def test_another_answer_makes_the_run_invalid(
    bench: tuple[Held, report.Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that finds the state of another one is no error of HTTP."""
    mine, found = bench
    monkeypatch.setattr(held, "MARKER", "no such text")
    (verdict,) = mine.check(CLIENTS)
    assert not verdict.kept
    (problem,) = found.problems
    assert "differs" in problem
