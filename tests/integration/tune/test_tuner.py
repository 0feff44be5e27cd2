"""greenline tune from its beginning to its proof, in a short form, on real servers."""

import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from embedded.postgres import Postgres
from greenline.cli import main
from greenline.tune import choose, measure, proof, rate, results, run, server, timetable, tuner
from greenline.tune.server import Configuration, started
from tests.helpers.forms import in_the_long_form, some
from tests.helpers.pages import commands
from tests.helpers.support import CHECKOUT, environ

# Each request holds a connection for 20 ms: a pool of one answers 50 a second at most.
HOLDING = """\
import os
from contextlib import closing
import psycopg2
def app(environ, start_response):
    with closing(psycopg2.connect(os.environ["DATABASE_URL"])) as conn, conn.cursor() as cursor:
        cursor.execute("select pg_sleep(0.02)")
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]
"""
PLAIN = """\
from time import sleep
def app(environ, start_response):
    path = environ["PATH_INFO"]
    sleep(0.3 if path == "/slow" else 0.002)
    failures = {"/login": "401 Unauthorized", "/moved": "302 Found", "/fails": "500 Oh"}
    status = failures.get(path, "200 OK")
    headers = [("Content-Length", "5")] + [("Location", "/elsewhere")] * (path == "/moved")
    start_response(status, headers)
    return [b"hello"]
"""

PAGE = CHECKOUT / "docs" / "tune.md"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round of a fraction of a second, and few settings."""
    for module in (timetable, run, rate, proof):
        monkeypatch.setattr(module, "ROUNDS", 1)
    monkeypatch.setattr(tuner, "FIRST_SHARE", 2.0)
    monkeypatch.setattr(timetable, "WARM_UP_S", 0.1)
    monkeypatch.setattr(timetable, "MAX_WARM_UP_S", 0.1)
    monkeypatch.setattr(timetable, "SECONDS_S", 0.4)
    monkeypatch.setattr(timetable, "MAX_SECONDS_S", 0.4)
    monkeypatch.setattr(measure, "MIN_SAMPLES_P99", 40)
    monkeypatch.setattr(run, "FEWEST_SAMPLES", 50)
    monkeypatch.setattr(rate, "CURVE", (0.5, 1.0))
    monkeypatch.setattr(tuner, "POOLS", (1, 8))
    monkeypatch.setattr(choose, "waits", lambda knee, cores: False)
    monkeypatch.setattr(tuner, "LIMITS", (2,))
    monkeypatch.setattr(tuner, "IDLE", (0, 100))
    monkeypatch.setattr(proof, "PROOF", (1.0,))
    monkeypatch.setattr(proof, "DEFAULTS", (1.0,))


def typed(beginning: str) -> list[str]:
    """Return the arguments of the page's command that begins so."""
    (line,) = (each for each in commands(PAGE) if each.startswith(beginning))
    return shlex.split(line)[1:]


@pytest.mark.timeout(600)  # some thirty services are started, and the machine may be busy
@pytest.mark.usefixtures("short")
def test_what_is_recommended_was_measured(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number has its sweep, its reason and its variables; check-deploy accepts the file."""
    (tmp_path / "myapp.py").write_text(HOLDING)
    monkeypatch.setenv("DATABASE_URL", postgres.url)
    monkeypatch.setenv("GREENLINE_POOL", "1")
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "access.log").write_text('- - - [-] "GET / HTTP/1.1" 200 5')
    done = CliRunner().invoke(
        main,
        typed("greenline tune myapp:app "),
        default_map={"tune": {"max_rate": 150.0, "slo": "p99=500ms,errors=1%"}},
    )
    assert done.exit_code == 0, done.output
    found = results.read(tmp_path / "result.json")
    assert {sweep.name for sweep in found.sweeps} == {"rate", "pool", "workers", "limit", "idle"}
    rate, pool = found.sweep("rate"), found.sweep("pool")
    assert rate is not None
    assert (knee := rate.knee(found.objective)) is not None
    assert 75 <= knee.offered_rate <= 150
    assert knee.shares is not None
    assert knee.shares.postgres_s > 0.015
    assert pool is not None
    by_size = {step.setting: step for step in pool.steps}
    assert by_size[1].answered_rate < 60
    assert by_size[1].connections < by_size[8].connections
    recommended = found.recommended("pool")
    assert recommended is not None
    assert recommended.value > 1
    assert found.verification is not None
    assert found.verification.ours is not None
    assert found.verification.against_defaults is not None
    assert [fit.is_usable for fit in found.fits] == [False, False]
    assert all(
        step.rounds for sweep in found.sweeps for step in sweep.steps if sweep.name != "idle"
    )
    assert (tmp_path / "report.html").stat().st_size > 10_000
    checked = subprocess.run(
        [sys.executable, "-m", "greenline", "check-deploy",
         "--gunicorn", str(tmp_path / "gunicorn.conf.py"),
         "--nginx", str(CHECKOUT / "deploy" / "nginx.conf")],
        env=environ({"PYTHONPATH": str(CHECKOUT)}), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    line = f"POSTGRES_POOL_SIZE={recommended.value:.0f}"
    assert line in (tmp_path / "gunicorn.conf.py").read_text()
    assert f"  {line}\n" in done.output


@pytest.mark.usefixtures("short")
def test_a_server_that_runs_is_asked_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rate is found, and what follows from that; two results make a page."""
    (tmp_path / "plain.py").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    with started("plain:app", tmp_path, Configuration(1)) as running:
        # As on a host without other tests, whose servers are of the same kind.
        monkeypatch.setattr(server, "_only_workers", lambda: running.workers)
        line = typed("greenline tune --url ")
        done = CliRunner().invoke(
            main,
            [each.replace("http://127.0.0.1:8000", running.url) for each in line],
            default_map={"tune": {"max_rate": 100.0}},
        )
    assert done.exit_code == 0, done.output
    found = results.read(tmp_path / "before.json")
    results.write(found, tmp_path / "after.json")
    assert [sweep.name for sweep in found.sweeps] == ["rate"]
    assert all(step.shares for step in found.sweeps[0].steps)
    assert found.verification is None
    assert {one.name for one in found.recommendations} == {"keepalive", "worker_connections"}
    done = CliRunner().invoke(main, typed("greenline tune --compare "))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "compared.html").stat().st_size > 10_000


@pytest.mark.usefixtures("short")
def test_workers_that_do_not_answer_there_are_not_looked_at(
    plain: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one gunicorn of the host may be another one than the server of --url."""
    monkeypatch.setattr(NotFound, "do_GET", NotFound.do_POST)
    with started("plain:app", plain, Configuration(1)) as running:
        monkeypatch.setattr(server, "_only_workers", lambda: running.workers)
        done = tune("--url", other, "--load", "/", "--max-rate", "50", "--json", "found.json")
    assert done.exit_code == 0, done.output
    (rate,) = results.read(plain / "found.json").sweeps
    assert not any(step.shares for step in rate.steps)


def tune(*arguments: str) -> Result:
    return CliRunner(env={"WEB_CONCURRENCY": "1"}).invoke(main, ["tune", *arguments])


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with an application."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no settings')")
    (tmp_path / "posts.log").write_text('- - - [-] "POST /a HTTP/1.1" 200 5')
    (tmp_path / "other.log").write_text(
        "\n".join(f'- - - [-] "GET /{each} HTTP/1.1" 200 5' for each in "abc")
    )
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["plain:app", "--load", "/moved"], "a redirect to /elsewhere"),
        (["plain:app", "--load", "/login"], "it needs a login, as in --header"),
        (["plain:app", "--load", "/fails"], "it fails without any load"),
        (["plain:app", "--load", "/slow"], "the objective of 200 ms cannot be met"),
        (["plain:app", "--load", "/", "--total", "10"], "too little time for three rounds: 10 s"),
        (["plain:app", "--load", "posts.log"], "it has POST alone"),
        (["broken:app", "--load", "/"], "gunicorn does not serve: "),
        (["--url", "http://192.0.2.1", "--load", "/"], "say so with --i-own-this-host"),
    ],
    ids=["redirect", "login", "500", "slow", "no time", "POSTs", "no start", "another host"],
)
def test_bad_input_is_one_line(plain: Path, arguments: Sequence[str], reason: str) -> None:
    """Nothing is recommended without its measurement, and the exit status is 1."""
    done = tune(*arguments, "--write", "written.py")
    assert done.exit_code == 1, done.stderr
    (line,) = (each for each in done.stderr.splitlines() if each.startswith("Error: "))
    assert reason in line
    assert "Traceback" not in done.stderr
    assert not (plain / "written.py").exists()


class NotFound(BaseHTTPRequestHandler):
    """A server that has none of the pages."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other() -> Iterator[str]:
    """The URL of another service."""
    with ThreadingHTTPServer(("127.0.0.1", 0), NotFound) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.usefixtures("plain")
def test_the_log_of_another_service_is_not_offered(other: str) -> None:
    """All that it asks for is not there."""
    done = tune("--url", other, "--load", "other.log")
    assert done.exit_code == 1
    assert "3 of 3 URLs: the log is of another service" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["plain:app", "--load", "/", "--slo", "fast"], "not of the form p99=200ms,errors=0.1%"),
        (["--load", "/"], "give either what gunicorn is given"),
        (["plain:app"], "--load is missing"),
        (["plain:app", "--load", "/", "--total", "nan"], "'nan' is not a finite number"),
        (["plain:app", "--load", "/", "--max-rate", "nan"], "'nan' is not a finite number"),
    ],
    ids=["objective", "target", "load", "total", "rate"],
)
def test_wrong_use_is_explained(arguments: Sequence[str], reason: str) -> None:
    """By the exit status 2."""
    done = tune(*arguments)
    assert (done.exit_code, reason in done.stderr) == (2, True), done.stderr


def test_what_cannot_be_read_or_written_is_one_line(plain: Path) -> None:
    """Before anything is measured."""
    done = tune("plain:app", "--load", "/", "--json", "missing/result.json")
    assert (done.exit_code, "there is no folder missing" in done.stderr) == (2, True)
    (plain / "gunicorn.conf.py").write_text("workers = 3")
    done = tune("plain:app", "--load", "/", "--write", "gunicorn.conf.py")
    assert (done.exit_code, "it is there, and not of greenline tune" in done.stderr) == (2, True)
    assert (plain / "gunicorn.conf.py").read_text() == "workers = 3"
    (plain / "old.json").write_text("{}")
    done = tune("--compare", "old.json", "old.json", "--report", "report.html")
    assert done.exit_code == 1
    assert "old.json: not a result of greenline tune" in done.stderr
    done = CliRunner(env={"WEB_CONCURRENCY": "many"}).invoke(
        main, ["tune", "plain:app", "--load", "/"]
    )
    assert done.exit_code == 1
    assert "WEB_CONCURRENCY" in done.stderr


@in_the_long_form
@pytest.mark.parametrize("moment", some(["workers 1, round 1", "searching the rate: 400/s"]))
def test_ctrl_c_gives_what_is_known_so_far(plain: Path, moment: str) -> None:
    """The rates that were measured, in the file too; and the server that was started is gone."""
    with subprocess.Popen(
        [sys.executable, "-m", "greenline", "tune", "plain:app", "--load", "/", "--max-rate", "400",
         "--total", "250", "--json", "known.json"],
        cwd=plain, env=environ({"PYTHONPATH": str(CHECKOUT), "WEB_CONCURRENCY": "1"}),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stderr is not None
        for line in child.stderr:
            if moment in line:
                break
        child.send_signal(signal.SIGINT)
        said, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert "interrupted\nknown.json is written" in errors
    assert "rate: requests a second" in said
    assert "To copy" not in said
    known = results.read(plain / "known.json")
    assert [sweep.name for sweep in known.sweeps] == ["rate"]
    assert known.recommendations == []
