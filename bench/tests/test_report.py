"""A bench's table, its JSON and its exit status."""

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.hey import Result


def row(who: str, req_s: float, work: str = "read", clients: int = 10, **more: Any) -> report.Row:
    """Make a row where only the speed matters."""
    return report.Row(work, who, clients, {"200": 10}, 1.0, req_s, **more)


def test_row_carries_the_figures_of_hey() -> None:
    """A row takes every figure of a result, and a bench's own columns beside them."""
    result = Result(10, 5, {"200": 9, "error": 1}, 2.0, 4.5, 1.0, 2.0, 3.0)
    made = report.row("read", "greenline", result, 61.5, backends=7)
    assert made == report.Row(
        "read", "greenline", 5, {"200": 9, "error": 1}, 2.0, 4.5, 1.0, 2.0, 3.0, 61.5, None,
        {"backends": 7},
    )  # fmt: skip


def test_ratio_is_ours_over_the_peers() -> None:
    """The ratio is our req/s over the peer's for the same work and clients."""
    rows = [
        row("greenline", 30.0),
        row("psycogreen", 10.0),
        row("stock-gevent", 4.0),
        row("greenline", 50.0, clients=100),
        row("psycogreen", 100.0, clients=100),
        row("greenline", 9.0, work="write"),
    ]
    assert report.ratios(rows) == {
        "read": {
            "10": {"psycogreen": 3.0, "stock-gevent": 7.5},
            "100": {"psycogreen": 0.5},
        }
    }


def test_ratio_to_a_silent_peer_is_none() -> None:
    """A peer without one good answer has no ratio, and no infinity gets into the JSON."""
    rows = [row("greenline", 30.0), row("psycogreen", 0.0)]
    assert report.ratios(rows) == {"read": {"10": {"psycogreen": None}}}


def test_middle_of_repeats_tells_their_spread() -> None:
    """Of several runs the middle one is kept, with how far they lie apart."""
    kept = report.middle([row("greenline", 120.0), row("greenline", 80.0), row("greenline", 100.0)])
    assert (kept.req_s, kept.spread) == (100.0, 0.4)


def test_one_run_has_no_spread() -> None:
    """A single run says nothing of its spread."""
    assert report.middle([row("greenline", 120.0)]).spread is None


def test_repeats_without_an_answer_have_no_spread() -> None:
    """Runs of speed 0 do not divide by it."""
    assert report.middle([row("psycogreen", 0.0), row("psycogreen", 0.0)]).spread is None


def test_json_has_the_shape_of_every_bench(tmp_path: Path) -> None:
    """The file holds rows with the agreed names, ratios, the machine and what was wrong."""
    found = report.Report("some", tmp_path / "results")
    found.add(row("greenline", 30.0, rss_mb=60.0, spread=0.1, more={"backends": 7}))
    found.add(row("psycogreen", 10.0))
    found.finish()
    written = json.loads((tmp_path / "results" / "some.json").read_text())
    assert sorted(written) == ["date", "machine", "problems", "ratios", "rows", "verdicts"]
    assert written["rows"][0] == {
        "work": "read",
        "who": "greenline",
        "clients": 10,
        "answers": {"200": 10},
        "seconds": 1.0,
        "req_s": 30.0,
        "p50_ms": None,
        "p99_ms": None,
        "p999_ms": None,
        "rss_mb": 60.0,
        "spread": 0.1,
        "backends": 7,
    }
    assert written["ratios"] == {"read": {"10": {"psycogreen": 3.0}}}


def test_machine_is_reported_without_names_or_paths() -> None:
    """The machine is its cores, memory, Python and kernel; its name is not in it."""
    reported = report.machine()
    assert sorted(reported) == ["cores", "kernel", "memory_gb", "python"]
    assert reported["cores"] >= 1
    assert reported["memory_gb"] > 0
    assert reported["python"] == platform.python_version()
    assert "/" not in json.dumps(reported)
    assert platform.node() not in reported["kernel"].split()


def test_exit_status_is_0_for_a_slow_run(tmp_path: Path) -> None:
    """Being slower than a peer, or a peer's errors, do not fail a run."""
    found = report.Report("some", tmp_path)
    found.add(row("greenline", 1.0))
    found.add(report.Row("read", "psycogreen", 10, {"200": 1, "500": 9}, 1.0, 100.0))
    assert found.finish() == 0


def test_exit_status_is_1_for_an_invalid_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A problem fails the run and is printed; the file is written all the same."""
    found = report.Report("some", tmp_path)
    found.invalid("a server did not start")
    assert found.finish() == 1
    assert "INVALID: a server did not start" in capsys.readouterr().out
    assert json.loads((tmp_path / "some.json").read_text())["problems"] == [
        "a server did not start"
    ]


def test_table_lines_up_with_what_went_wrong_beside_the_speed() -> None:
    """Each row is a line: the 200s, the other answers by status, and the bench's own columns."""
    answers = {"200": 98, "500": 900, "error": 2}
    reported = report.table(
        [
            report.Row("read", "psycogreen", 1000, answers, 2.5, 39.2, more={"backends": 97}),
            row("greenline", 30.0, more={"backends": 5}),
        ]
    )
    heads, first, second = reported.splitlines()
    assert heads.split()[:5] == ["work", "who", "clients", "200", "others"]
    assert first.split() == [
        "read", "psycogreen", "1000", "98", "500:900", "error:2", "2.50", "39.2", "97"
    ]  # fmt: skip
    assert second.split() == ["read", "greenline", "10", "10", "1.00", "30.0", "5"]
    assert len(heads) == len(first) == len(second)
