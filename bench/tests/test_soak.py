"""When a long run counts as one without a failure and without growing memory."""

from pathlib import Path
from typing import Any

import pytest

from bench import hey, report, soak
from bench.servers import ServerError

WORK = soak.Work("postgres", "/books/17")


@pytest.mark.parametrize(
    ("curve_mb", "kept", "reported"),
    [
        pytest.param([60.0, 60.0, 60.0], True, "at most 0.0 MB more", id="level"),
        pytest.param([60.0, 59.0, 58.0], True, "at most 0.0 MB more", id="less"),
        pytest.param([60.1, 62.1, 61.0], True, "at most 2.0 MB more", id="just-within"),
        pytest.param([60.0, 62.1, 60.0], False, "at most 2.1 MB more", id="above-in-between"),
        pytest.param([60.0, 60.5, 65.0], False, "at most 5.0 MB more", id="above-at-the-end"),
    ],
)
def test_memory_may_grow_by_two_megabytes(curve_mb: list[float], kept: bool, reported: str) -> None:
    """The highest memory counts, against that after the first step."""
    verdict = soak.memory(WORK, curve_mb)
    assert verdict.kept is kept
    assert reported in verdict.text
    assert ("ABOVE 2 MB" in verdict.text) is not kept


def test_what_is_asked_is_what_was_promised() -> None:
    """100,000 requests at 200 connections, in steps that hey does not round."""
    assert soak.CLIENTS == 200
    assert [soak.STEPS * work.step for work in soak.WORKS] == [100_000, 20_000, 100_000]
    for work in soak.WORKS:
        hey.refuse(work.step, soak.CLIENTS)


class Run:
    """A soak with prepared answers, memory and workers instead of a server and hey."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.found = report.Report("soak", folder)
        self.answers = [{"200": WORK.step}] * 5
        self.rss_mb = [60.0] * 5
        self.workers = [7] * 6
        self._step = 0
        monkeypatch.setattr(soak.hey, "run", self._hey)
        monkeypatch.setattr(soak.proc, "rss_mb", lambda pid: self.rss_mb[self._step - 1])
        monkeypatch.setattr(soak, "wait_until_quiet", lambda pid: None)
        monkeypatch.setattr(soak, "only_worker", lambda server: self.workers[self._step])

    def __call__(self) -> str:
        server: Any = type("Server", (), {"url": "http://x"})
        return soak.judge(self.found, WORK, soak.soak(self.found, WORK, report.OURS, server))

    def _hey(self, url: str, requests: int, clients: int, timeout_s: int) -> hey.Result:
        assert (url, requests, clients) == ("http://x/books/17", WORK.step, soak.CLIENTS)
        self._step += 1
        answers = self.answers[self._step - 1]
        return hey.Result(requests, clients, answers, 2.0, requests / 2, 1.0, 2.0, 3.0)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a soak in which everything goes well."""
    return Run(monkeypatch, tmp_path)


def test_each_step_is_a_row_with_the_memory_after_it(run: Run) -> None:
    """Five rows tell the memory after each 20,000 requests, and the run is valid."""
    run.rss_mb = [60.0, 60.5, 60.2, 61.0, 60.9]
    assert "within" in run()
    reported = [(row.work, row.rss_mb) for row in run.found.rows]
    assert reported == [
        ("postgres-20000", 60.0),
        ("postgres-40000", 60.5),
        ("postgres-60000", 60.2),
        ("postgres-80000", 61.0),
        ("postgres-100000", 60.9),
    ]
    assert run.found.problems == []


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({"200": WORK.step - 1, "503": 1}, id="a-refusal"),
        pytest.param({"200": WORK.step - 1, "error": 1}, id="no-answer"),
        pytest.param({"200": WORK.step - 1}, id="one-too-few"),
    ],
)
def test_one_failure_makes_the_run_invalid(run: Run, answers: dict[str, int]) -> None:
    """A single request without a 200 is reported with its step; the rest is still asked."""
    run.answers[2] = answers
    run()
    (problem,) = run.found.problems
    assert problem == f"postgres greenline, until 60,000 requests: answers {answers}"
    assert len(run.found.rows) == 5


def test_growing_memory_makes_the_run_invalid(run: Run) -> None:
    """Memory is a bound and not a speed: above it the run does not count."""
    run.rss_mb = [60.0, 61.0, 62.0, 63.0, 64.0]
    assert run.found.problems == [run()]


def test_a_replaced_worker_does_not_pass_for_one_that_stays_small(run: Run) -> None:
    """A worker that was started anew has forgotten what it had kept: there is no verdict."""
    run.workers[3] = 8
    with pytest.raises(ServerError, match="replaced before 60,000"):
        run()


def test_there_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of one worker is judged, so none or two are refused."""
    server: Any = type("Server", (), {"process": type("P", (), {"pid": 1}), "log_text": str})
    monkeypatch.setattr(soak.proc, "children", lambda pid: [7])
    assert soak.only_worker(server) == 7
    for children in ([], [7, 8]):
        monkeypatch.setattr(soak.proc, "children", lambda pid, children=children: children)
        with pytest.raises(ServerError, match="instead of one"):
            soak.only_worker(server)
