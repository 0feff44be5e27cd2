"""What makes the comparison with threads fair, and when its promises are kept."""

import argparse
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench import hey_build, legacy, legacy_environments, legacy_lineup, load, report
from bench.http_lineup import GREEN
from bench.legacy_lineup import WORKS, Work
from greenline import settings
from tests.helpers.support import IS_LONG

OURS = report.OURS
BY_NAME = {work.name: work for work in WORKS}
BUSY, SLEEPING = BY_NAME["django-orders-60"], BY_NAME["httpbin-delay"]
CONNECTING, POOLED = BY_NAME["django-sleep-60"], BY_NAME["flask-pool-sleep"]


def row(who: str, req_s: float, clients: int = 50, **answers: int) -> report.Row:
    """Return a row of *who*, all of whose answers are right unless *answers* says otherwise."""
    counts = {"200": 100, **{status.lstrip("_"): count for status, count in answers.items()}}
    return report.Row(BUSY.name, who, clients, counts, 1.0, req_s)


@pytest.fixture
def no_installs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Have every application's environment be a folder that stays empty."""
    monkeypatch.setattr(legacy_environments, "find", lambda name: tmp_path / name)
    return tmp_path


def test_ours_has_no_setting_and_gthread_the_same_environment(
    no_installs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's settings are left out; the worker class is all that differs."""
    monkeypatch.setenv(settings.MAX_IN_PROGRESS.name, "14")
    monkeypatch.setenv("DRAIN_DELAY", "9")
    ours, theirs = (
        legacy_lineup.server(who, BUSY.application, "postgresql:///x", no_installs / who, {})
        for who in (OURS, "gthread-16")
    )
    assert settings.MAX_IN_PROGRESS.name not in ours.env
    assert "DRAIN_DELAY" not in ours.env
    assert ours.env == theirs.env
    assert ours.command[0] == theirs.command[0] == str(no_installs / "django" / "bin" / "gunicorn")
    common = [each for each in ours.command if each in theirs.command]
    assert [each for each in ours.command if each not in common] == [GREEN[1], ours.command[-1]]
    assert "--threads 16" in " ".join(theirs.command)
    # gunicorn reads a gunicorn.conf.py where it starts: the checkout has one.
    assert not (ours.cwd / "gunicorn.conf.py").exists()


def test_a_setting_is_for_ours_alone(no_installs: Path) -> None:
    """An experiment changes our worker and no other."""
    tried = {settings.MAX_IN_PROGRESS.name: "14"}
    envs = [
        legacy_lineup.server(who, BUSY.application, "postgresql:///x", no_installs / who, tried).env
        for who in (OURS, "gthread-8")
    ]
    assert [each.get(settings.MAX_IN_PROGRESS.name) for each in envs] == ["14", None]


def test_every_application_takes_part() -> None:
    """The applications and the clients that the promise names; each has its pins."""
    names = {work.application.name for work in WORKS}
    assert names == {"mlflow", "django", "flask", "httpbin", "kinto"}
    assert legacy.CLIENTS == (20, 50, 200)
    assert legacy_lineup.THREADS == (8, 16, 32)
    assert len(BY_NAME) == len(WORKS)
    for name in (*names, "greenline"):
        lines = (legacy_environments.PINS / f"{name}.txt").read_text().splitlines()
        assert all("==" in line for line in lines if not line.startswith("#"))


def test_the_runtimes_pins_are_the_services() -> None:
    """Applications are hosted with the gunicorn and the gevent that the service has."""
    root = legacy_environments.PINS.parents[2]
    ours = (root / "requirements-common.txt").read_text() + (root / "requirements.txt").read_text()
    for line in (legacy_environments.PINS / "greenline.txt").read_text().splitlines():
        assert line.startswith("#") or line in ours.splitlines()


@pytest.mark.parametrize(
    ("work", "clients", "threads", "promised"),
    [
        pytest.param(BUSY, 200, 32, 0.95, id="busy"),
        pytest.param(BY_NAME["mlflow-runs"], 200, 32, 0.85, id="explained"),
        pytest.param(SLEEPING, 20, 32, 0.95, id="waits-20"),
        pytest.param(SLEEPING, 50, 32, 1.4, id="waits-50"),
        pytest.param(SLEEPING, 200, 32, 5.0, id="waits-200"),
        pytest.param(CONNECTING, 50, 32, 1.4, id="connects-50"),
        pytest.param(CONNECTING, 200, 32, 2.73, id="connects-200"),
        pytest.param(CONNECTING, 200, 16, 5.0, id="connects-200-sixteen-threads"),
        pytest.param(POOLED, 20, 32, 0.95, id="pooled-20"),
        pytest.param(POOLED, 200, 32, 0.9, id="pooled-200"),
        pytest.param(CONNECTING.with_pool(), 200, 32, 1.21, id="connects-200-with-the-budget"),
        pytest.param(POOLED.with_pool(), 20, 32, 0.95, id="pooled-20-with-the-budget"),
        pytest.param(BUSY.with_pool(), 200, 32, 0.95, id="busy-with-the-budget"),
    ],
)
def test_what_is_promised(work: Work, clients: int, threads: int, promised: float) -> None:
    """Where connections bound both, nine tenths of what they allow."""
    assert work.promised(clients, threads) == pytest.approx(promised)


@pytest.mark.parametrize(
    ("ours", "kept"),
    [
        pytest.param(row(OURS, 285.0), [True], id="as-fast"),
        pytest.param(row(OURS, 284.0), [False], id="slower"),
        pytest.param(row(OURS, 300.0, _500=1), [True, False], id="an-error"),
        pytest.param(row(OURS, 300.0, differs=1), [True, False], id="a-wrong-body"),
    ],
)
def test_the_best_gthread_is_what_counts(ours: report.Row, kept: list[bool]) -> None:
    """95 % of the fastest number of threads, and no error that it does not have."""
    peers = [row("gthread-8", 200.0), row("gthread-16", 300.0), row("gthread-32", 9.0, error=5)]
    verdicts = legacy.judge(BUSY, by_name(ours, *peers))
    assert [verdict.kept for verdict in verdicts] == kept
    assert "req/s over gthread-16" in verdicts[0].text


def by_name(*rows: report.Row) -> dict[str, list[report.Row]]:
    return {each.who: [each] for each in rows}


def test_a_machine_that_changes_its_speed_changes_no_verdict() -> None:
    """Each round is compared with the one beside it: twice as fast, then half as fast."""
    rows = {
        OURS: [row(OURS, speed) for speed in (200.0, 100.0, 50.0)],
        "gthread-8": [row("gthread-8", speed) for speed in (190.0, 101.0, 52.0)],
    }
    (verdict,) = legacy.judge(BUSY, rows)
    assert verdict.kept
    assert "0.99" in verdict.text


def test_where_both_answer_nothing_the_promise_is_missed() -> None:
    """Ours is no better than a peer that hangs, unless it answers."""
    verdicts = legacy.judge(BUSY, by_name(row(OURS, 0.0), row("gthread-8", 0.0)))
    assert verdicts[0].kept is False


def test_errors_that_gthread_has_too_are_allowed() -> None:
    """What the application does by itself is not ours."""
    verdicts = legacy.judge(BUSY, by_name(row(OURS, 9.0, _500=1), row("gthread-8", 9.0, _500=2)))
    assert [verdict.kept for verdict in verdicts] == [True, True]
    assert "500:1 (best gthread: 500:2)" in verdicts[1].text


@pytest.mark.parametrize(("status", "kept"), [("200", []), ("500", [False])])
def test_the_first_answers_of_new_workers_are_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str, kept: list[bool]
) -> None:
    """By their errors alone; gthread has none here."""

    def run_for(urls: list[str], *_: Any, **__: Any) -> load.Run:
        found = status if urls[0].startswith(OURS) else "200"
        return load.Run([load.Answer(0.0, 1.0, found)] * 9, 1.0)

    monkeypatch.setattr(legacy.load, "run_for", run_for)
    found = report.Report("legacy", tmp_path)
    bench = legacy.Legacy(found, tmp_path, {}, rounds=1, seconds=1.0, given={}, is_judged=True)
    servers: Any = {who: Named(who) for who in (OURS, "gthread-8")}
    verdicts = bench._burst(BUSY, servers, 200)
    assert [verdict.kept for verdict in verdicts] == kept
    assert found.rows == []


@pytest.mark.parametrize(
    "theirs", [{"_500": 1}, {"_503": 9}], ids=["more often", "of another kind"]
)
def test_errors_that_gthread_has_less_of_are_not_allowed(theirs: dict[str, int]) -> None:
    """One error of gthread's does not excuse many of ours, nor one of another kind."""
    rows = by_name(row(OURS, 9.0, _500=9), row("gthread-8", 9.0, **theirs))
    assert [verdict.kept for verdict in legacy.judge(BUSY, rows)] == [True, False]


def test_the_ceiling_is_said() -> None:
    """A verdict that connections bound names them."""
    rows = by_name(row(OURS, 270.0, 200), row("gthread-32", 100.0, 200))
    (verdict,) = legacy.judge(CONNECTING, rows)
    assert "97 connections allow 3.03 at most" in verdict.text
    assert verdict.kept is False


class Named:
    """Stands for a started server."""

    process = None

    def __init__(self, who: str) -> None:
        self.url = who

    def rss_mb(self) -> float:
        return 50.0

    def start(self) -> None:
        """Start it again."""

    def stop(self) -> None:
        """Stop it."""


def compared(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    speeds: dict[str, list[int]],
    *,
    is_judged: bool = True,
) -> tuple[report.Report, list[Any]]:
    """Compare servers with prepared *speeds*, one a round; return the report and the verdicts."""
    turns = {who: iter(each) for who, each in speeds.items()}

    def run_for(urls: list[str], seconds: float, clients: int, **_: Any) -> load.Run:
        if clients == legacy.WARM_CLIENTS:
            return load.Run([], seconds)
        answers = [load.Answer(0.0, 1.0, "200")] * next(turns[urls[0].removesuffix(BUSY.path)])
        return load.Run(answers, 1.0)

    monkeypatch.setattr(legacy.load, "run_for", run_for)
    found = report.Report("legacy", tmp_path)
    bench = legacy.Legacy(found, tmp_path, {}, rounds=3, seconds=1.0, given={}, is_judged=is_judged)
    servers: Any = {who: Named(who) for who in speeds}
    return found, bench._compare(BUSY, servers, 50)


def test_rounds_are_interleaved_and_the_middle_one_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A row has the middle speed, and the answers of all rounds."""
    found, verdicts = compared(
        monkeypatch, tmp_path, {OURS: [100, 90, 400], "gthread-8": [80, 95, 100]}
    )
    assert [(each.who, each.req_s) for each in found.rows] == [(OURS, 100), ("gthread-8", 95)]
    assert found.rows[0].answers == {"200": 590}
    assert [each.kept for each in verdicts] == [True]


def test_a_gthread_that_is_far_behind_is_measured_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It cannot be the best; one that hangs would take most of the time."""
    speeds = {OURS: [100, 100, 100], "gthread-8": [59], "gthread-16": [100, 100, 100]}
    found, _ = compared(monkeypatch, tmp_path, speeds)
    assert [each.req_s for each in found.rows] == [100, 59, 100]


def test_a_miss_is_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ours and the best one start again, for as many rounds, and the middle one of all counts."""
    started: list[str] = []
    monkeypatch.setattr(Named, "start", lambda server: started.append(server.url))
    speeds = {
        OURS: [50, 50, 100, 100, 100, 100],
        "gthread-8": [20],
        "gthread-16": [100, 90, 100, 90, 90, 100],
    }
    found, verdicts = compared(monkeypatch, tmp_path, speeds)
    assert [each.kept for each in verdicts] == [True]
    assert [each.req_s for each in found.rows] == [100, 20, 90]
    assert started == [OURS, "gthread-16"]


def test_an_experiment_is_not_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With settings of ours there is no verdict and no second look."""
    found, verdicts = compared(
        monkeypatch,
        tmp_path,
        {OURS: [1, 1, 1], "gthread-8": [9, 9, 9]},
        is_judged=False,
    )
    assert verdicts == []
    assert len(found.rows) == 2


def test_works_are_chosen_by_pattern() -> None:
    """Names and patterns, with commas."""
    chosen = legacy.chosen("httpbin-json,django-orders*")
    assert [work.name for work in chosen] == ["django-orders", "django-orders-60", "httpbin-json"]
    assert legacy.chosen("*") == list(WORKS)


def test_the_options_are_read() -> None:
    """A quick look has one short round; settings are pairs."""
    options = legacy.parsed(["--quick", "--clients", "20,50", "--set", "A=b=c"])
    assert (options.clients, options.rounds, options.seconds) == ([20, 50], 1, 1.0)
    assert (options.set, options.pool) == ({"A": "b=c"}, False)
    assert legacy.parsed([]).rounds == legacy.ROUNDS
    with pytest.raises(SystemExit):
        legacy.parsed(["--set", "A"])


@pytest.mark.parametrize(
    ("given", "name"),
    [([], "legacy"), (["--set=A=b"], "legacy-experiment"), (["--pool"], "legacy-pool")],
    ids=["run", "tried", "pooled"],
)
def test_main_writes_rows_and_ratios(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    name: str,
) -> None:
    """The file has both, and what failed; the run that counts has a file of its own."""

    def run(found: report.Report, options: argparse.Namespace) -> list[Any]:
        found.add(row(OURS, 100.0))
        found.add(row("gthread-8", 50.0))
        raise legacy.InstallError("no network")

    drawn = []
    monkeypatch.setattr(legacy, "run", run)
    monkeypatch.setattr(legacy.signal, "signal", lambda *_: None)
    monkeypatch.setattr(legacy.report, "RESULTS", tmp_path)
    monkeypatch.setattr(legacy.sys, "argv", ["legacy", *given])
    monkeypatch.setattr(legacy.picture, "ratios", lambda *given: drawn.append(given))
    kept = report.Report
    monkeypatch.setattr(legacy.report, "Report", lambda name: kept(name, tmp_path))
    assert legacy.main() == 1
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["ratios"] == {BUSY.name: {"50": {"gthread-8": 2.0}}}
    assert written["problems"] == ["no network"]
    ((_, promised, path),) = drawn
    assert promised == {(BUSY.name, 50): 0.95}
    assert path == tmp_path / f"{name}.png"
    assert ("EXPERIMENT" in capsys.readouterr().out) is (name == "legacy-experiment")


def test_an_environment_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is made again when a pin has changed, or when it was not finished."""
    pins = tmp_path / "pins"
    pins.mkdir()
    for each in ("small", "greenline"):
        (pins / f"{each}.txt").write_text("x==1\n")
    commands: list[list[str]] = []

    def make(command: list[str]) -> None:
        commands.append(command)
        (tmp_path / "var" / "legacy" / "small").mkdir(exist_ok=True)

    monkeypatch.setattr(legacy_environments, "PINS", pins)
    monkeypatch.setattr(legacy_environments, "VAR", tmp_path / "var")
    monkeypatch.setattr(legacy_environments, "FOLDER", tmp_path / "var" / "legacy")
    monkeypatch.setattr(legacy_environments, "_run", make)
    for _ in range(2):
        found = legacy_environments.find("small")
    assert [each[2] for each in commands] == ["venv", "pip"]
    assert "--no-deps" in commands[1]
    (pins / "greenline.txt").write_text("x==2\n")
    legacy_environments.find("small")
    assert len(commands) == 4
    (found / "installed").unlink()
    legacy_environments.find("small")
    assert len(commands) == 6


def test_a_failed_install_is_reported(tmp_path: Path) -> None:
    """pip's own words."""
    with pytest.raises(legacy_environments.InstallError, match="No such file"):
        legacy_environments._run(["sh", "-c", "echo No such file >&2; exit 1"])


class Answers(BaseHTTPRequestHandler):
    """Answers by path: right, wrong, in chunks, or with what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        length = int(self.headers.get("Content-Length", 0))
        said = self.rfile.read(length) or (self.headers["Cookie"] or "").encode()
        self.server.said.add(said)  # type: ignore[attr-defined]
        self.send_response(500 if self.path == "/fails" else 200)
        body = b"the marker" if self.path != "/differs" else b"nothing"
        body = said if self.path == "/mine" else body
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"4\r\nthe \r\n6\r\nmarker\r\n0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Answer the same."""
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    """A server of Answers; what it was sent is in ``said``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.said = set()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(site: ThreadingHTTPServer, path: str, **options: Any) -> load.Run:
    """Ask *site* for *path* for a moment, from three clients."""
    url = f"http://127.0.0.1:{site.server_port}{path}"
    given = {"marker": "marker", "headers": {}, **options}
    return load.run_for([url], 0.2, 3, **given)


@pytest.mark.skipif(
    not hey_build.path_of(load.SOURCES).exists() and not IS_LONG,
    reason="load is not built yet",
)
class TestLoad:
    """The closed loop that asks for a time."""

    @pytest.mark.parametrize(
        ("path", "status"),
        [("/right", "200"), ("/chunked", "200"), ("/differs", "differs"), ("/fails", "500")],
    )
    def test_answers_are_distinguished(
        self, site: ThreadingHTTPServer, path: str, status: str
    ) -> None:
        """Right, in chunks too; with another body; and with another status."""
        run = ask(site, path)
        assert {each.status for each in run.answers} == {status}
        assert len(run.answers) >= 3

    def test_each_client_has_its_number(self, site: ThreadingHTTPServer) -> None:
        """A header may name the client, so that each has a session of its own."""
        ask(site, "/right", headers={"Cookie": "sessionid=bench{client}"})
        assert site.said == {f"sessionid=bench000{each}".encode() for each in range(3)}  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("sent", "status"), [("bench{client}", "200"), ("bench0001", "differs")]
    )
    def test_the_answer_of_another_client_differs(
        self, site: ThreadingHTTPServer, sent: str, status: str
    ) -> None:
        """The marker may name the client, too: here the second one has its own each time."""
        run = ask(site, "/mine", headers={"Cookie": sent}, marker="bench{client}")
        assert {each.status for each in run.answers} == {"200", status}

    def test_a_post_stands_alone(self, site: ThreadingHTTPServer) -> None:
        """What a POST answers is what is looked at."""
        run = ask(site, "/right", body='{"a": 1}')
        assert {each.status for each in run.answers} == {"200"}
        assert site.said == {b'{"a": 1}'}  # type: ignore[attr-defined]
