"""What makes a run of the article's experiment count."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench import article, report
from bench.contenders import Work, contenders, flask
from bench.servers import ServerError

SLEEP = Work("sleep-1s", 1, 1, (1000,))
SPEEDS = {"greenline": 1000.0, "psycogreen": 200.0, "gthread-pgbouncer": 900.0}


def row(who: str = "greenline", **figures: Any) -> report.Row:
    """Make the row of a run in which everything went well, but for *figures*."""
    fine: dict[str, Any] = {"answers": {"200": 1000}, "seconds": 11.5, "p50_ms": 6000.0}
    backends = figures.pop("backends", 95)
    fine |= figures
    return report.Row("sleep-1s", who, 1000, req_s=87.0, more={"backends": backends}, **fine)


def test_all_answers_within_the_budget_count() -> None:
    """A thousand of a thousand over as many connections as there are is valid."""
    assert list(article.problems(row(), SLEEP, 95)) == []


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param({"200": 999, "503": 1}, id="a-refusal"),
        pytest.param({"200": 999, "error": 1}, id="no-answer"),
        pytest.param({"200": 999}, id="one-too-few"),
    ],
)
def test_an_error_of_ours_does_not_count(answers: dict[str, int]) -> None:
    """Anything but a 200 for each client makes our run invalid."""
    (problem,) = article.problems(row(answers=answers), SLEEP, 95)
    assert str(answers) in problem


def test_an_error_of_a_script_counts() -> None:
    """The scripts' errors are what the experiment shows."""
    broken = row("psycogreen", answers={"200": 98, "500": 902}, backends=97)
    assert list(article.problems(broken, SLEEP, 95)) == []


def test_more_backends_than_the_budget_do_not_count() -> None:
    """Not one more."""
    assert list(article.problems(row(backends=94), SLEEP, 94)) == []
    (problem,) = article.problems(row(backends=95), SLEEP, 94)
    assert "95 backends, the budget is 94" in problem


@pytest.mark.parametrize("who", ["greenline", "psycogreen"])
def test_an_answer_that_did_not_sleep_does_not_count(who: str) -> None:
    """No server may answer 200 in less time than the query takes."""
    (problem,) = article.problems(row(who, p50_ms=12.0), SLEEP, 95)
    assert "without having slept" in problem


def test_a_tenth_over_the_rounds_keeps_the_promise() -> None:
    """A thousand clients on 94 connections are eleven rounds, so 12.1 seconds."""

    def judged(seconds: float, who: str = "greenline") -> list[bool | None]:
        found = article.verdicts(SLEEP, {who: row(who, seconds=seconds)}, 94)
        return [verdict.kept for verdict in found]

    assert judged(12.1) == judged(12.1, "greenline-service") == [True]
    assert judged(12.2) == [False]
    assert judged(60.0, "psycogreen") == []


def test_short_queries_are_judged_by_their_answers_a_second() -> None:
    """Those of the script on our worker, over those of psycogreen and of pgbouncer."""
    (work,) = [each for each in article.WORKS if each.name == "actors"]
    rows = {who: replace(row(who), req_s=speed) for who, speed in SPEEDS.items()}
    verdicts = {each.text.partition(":")[0]: each.kept for each in article.verdicts(work, rows, 94)}
    assert verdicts == {
        "actors, answers a second over psycogreen": True,
        "actors, answers a second over gthread-pgbouncer": False,
    }


def test_a_slow_run_of_ours_is_valid() -> None:
    """The verdict is printed; being a speed, it is no problem."""
    assert list(article.problems(row(seconds=29.0), SLEEP, 95)) == []


def test_only_ours_are_measured_cold() -> None:
    """All scripts take part where they are warm, and the service where it can."""
    works = {each.name: each for each in article.WORKS}
    found = [each.who for each in contenders("postgresql://x", "mongodb://x")]
    of = {name: [who for who in found if article.takes_part(who, works[name])] for name in works}
    assert of["sleep-1s-cold"] == ["greenline", "greenline-service"]
    assert of["sleep-1s"] == found
    assert set(found) - set(of["one"]) == {"greenline-service"}


def test_the_script_is_the_same_on_all_workers() -> None:
    """What differs is the worker and what is set for it; the service runs as in production."""
    found = {each.who: each for each in contenders("postgresql://x", "mongodb://x")}
    stock, psycogreen, ours = (found[who] for who in ("stock-gevent", "psycogreen", "greenline"))
    assert stock.arguments == psycogreen.arguments
    assert {**stock.env, "BENCH_PSYCOGREEN": "1"} == psycogreen.env
    assert stock.arguments[-1] == ours.arguments[-1] == found["gthread-pgbouncer"].arguments[-1]
    assert ours.env["GREENLINE_POOL"] == "1"
    assert found["greenline-service"].arguments == ("-c", "gunicorn.conf.py", "app.wsgi:app")


def test_scripts_start_where_no_settings_of_ours_are_read() -> None:
    """gunicorn reads a gunicorn.conf.py of its folder unasked: the scripts' has none."""
    stock = contenders("postgresql://x", "mongodb://x")[0]
    assert (stock.cwd / "connect_per_request.py").exists()
    assert not (stock.cwd / "gunicorn.conf.py").exists()


def test_workers_and_arguments_reach_the_server(tmp_path: Path) -> None:
    """A contender's gunicorn gets the work's number of workers and its own arguments."""
    work = Work("short-query", 0, 4, (10,), ("--worker-connections", "100"))
    for contender in contenders("postgresql://x", "mongodb://x"):
        server = contender.gunicorn(work, tmp_path / "log", {"BENCH_POOL_SIZE": "7"})
        command = " ".join(server.command)
        assert "--workers 4" in command
        assert "--worker-connections 100" in command
        assert server.env["BENCH_POOL_SIZE"] == "7"
        assert contender.query(work, 0).endswith("?seconds=0")


def test_one_of_the_others_that_cannot_be_measured_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It has no row, and the run counts; one of ours makes it invalid."""
    found: Any = report.Report("article")
    servers: Any = SimpleNamespace(url="postgresql://x")
    experiment = article.Experiment(found, servers, servers, cast(Any, None), tmp_path / "log")

    def measure(contender: Any, *_: Any) -> report.Row:
        if contender.who in failing:
            raise TimeoutError("timed out")
        return row(contender.who)

    monkeypatch.setattr(experiment, "_measure", measure)
    plan: Any = SimpleNamespace(host=100, worker=96)
    failing = ["stock-gevent"]
    experiment._compete(SLEEP, 1000, plan)
    assert "sleep-1s stock-gevent 1000 clients: timed out" in capsys.readouterr().err
    assert found.problems == []
    assert "stock-gevent" not in {each.who for each in found.rows}
    failing = ["greenline"]
    experiment._compete(SLEEP, 1000, plan)
    assert found.problems == ["sleep-1s greenline 1000 clients: timed out"]


def test_a_failing_command_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When ``flask db upgrade`` fails the bench says so in the command's own words."""
    program = tmp_path / "flask"
    program.write_text("#!/bin/sh\necho DATABASE_URL: refused >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ServerError, match="flask db upgrade: DATABASE_URL: refused"):
        flask("db", "upgrade", env={})
