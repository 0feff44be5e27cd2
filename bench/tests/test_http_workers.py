"""What two workers cost beside one."""

from pathlib import Path
from typing import Any

import pytest

from bench import http_workers as bench
from bench.http_report import Http
from bench.vegeta import Answer


def test_both_are_started_with_their_number_of_workers(tmp_path: Path) -> None:
    """The last word about it is the command line's."""
    for workers in (1, 2):
        command = " ".join(bench.peer(workers).server(tmp_path).command)
        assert f" --workers {workers} " in command
        assert "greenline.worker.GreenWorker" in command


@pytest.mark.parametrize(
    ("two_us", "kept"),
    [
        pytest.param([42.0, 90.0, 41.0], True, id="within"),
        pytest.param([42.1, 90.0, 42.5], False, id="above"),
    ],
)
def test_the_middle_of_the_ratios_is_judged(
    two_us: list[float], kept: bool, tmp_path: Path
) -> None:
    """At most 1.05 times one's; a busy moment in one round does not count."""
    found = Http("http", tmp_path)
    (verdict,) = bench.judge(found, {1: [40.0, 40.0, 40.0], 2: two_us}, None)
    assert verdict.kept is kept
    assert found.notes == [f"- {verdict.text}"]


def test_the_throughput_is_a_note_where_it_was_measured(tmp_path: Path) -> None:
    """It is reported and not judged."""
    found = Http("http", tmp_path)
    verdicts = bench.judge(found, {1: [40.0], 2: [40.0]}, {1: [100.0], 2: [190.0]})
    assert len(verdicts) == 1
    assert found.notes[0].endswith("\n- requests a second of two workers over one: 1.90")


class Used:
    """Stands for a server that uses more of the processor with each look at it."""

    def __init__(self, each_us: float) -> None:
        self.url, self._used_us, self._each_us = "http://x", 0.0, each_us

    def cpu_us(self) -> float:
        self._used_us += self._each_us
        return self._used_us


def test_the_cost_of_a_request_is_that_of_all_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was used meanwhile, over the number of answers; another status makes it invalid."""
    answers = [Answer(0.0, 0.1, "200")] * 9 + [Answer(0.0, 0.1, "503")]
    monkeypatch.setattr(bench.vegeta, "attack", lambda *_, **__: answers)
    found = Http("http", tmp_path)
    servers: Any = {1: Used(400.0), 2: Used(500.0)}
    assert bench.cpu_us(found, servers, 2) == {1: [40.0, 40.0], 2: [50.0, 50.0]}
    assert len(found.problems) == 4
