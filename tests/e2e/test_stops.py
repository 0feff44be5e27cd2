"""
Reloads, upgrades, recycling, stops and kills under load, counted on both sides.

``GREENLINE_LONG_TESTS=1`` does each of them twenty times.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import uwsgi
from tests.helpers.load import Load
from tests.helpers.processes import children, lives, pid_in
from tests.helpers.support import CHECKOUT, IS_LONG, Service, free_port, service, wait_until

ROUNDS = 20 if IS_LONG else 3
NO_CONFIG = "tests/e2e/plain_conf.py"


@contextmanager
def counting(folder: Path, *arguments: str, **more: str) -> Iterator[tuple[Service, Path, str]]:
    """Run the counting application on a TCP and on a unix socket."""
    requests, path = folder / "requests", str(folder / "s")
    environ = {"COUNTING": str(requests), **more}
    with service(
        environ,
        "-k", "greenline.worker.GreenWorker", "-w", "2", "--bind", f"unix:{path}", *arguments,
        target="tests.e2e.counting:app",
        config=NO_CONFIG,
        wait=False,
    ) as running:  # fmt: skip
        wait_until(lambda: all_answer(running), "two workers")
        yield running, requests, path


def all_answer(running: Service) -> bool:
    """Return whether each of two workers is seen to serve."""
    try:
        seen = {running.get("/count?probe").json["pid"] for _ in range(20)}
    except OSError:
        return False
    return len(seen) == 2


def written(requests: Path) -> Counter[str]:
    """Return how often each request reached the application."""
    return Counter(line.split()[0] for line in requests.read_text().splitlines())


def assert_nothing_lost(load: Load, requests: Path) -> None:
    """Each request has one answer, and was asked once."""
    assert load.failures == {}
    assert set(load.statuses) == {200}
    seen = written(requests)
    assert all(seen[str(number)] == 1 for number in load.answered)


def test_reloads_lose_nothing(tmp_path: Path) -> None:
    """HUP replaces every worker: no request fails, none is asked twice."""
    with counting(tmp_path) as (running, requests, path):
        load = Load(("127.0.0.1", running.port), path)
        for _ in range(ROUNDS):
            old = set(running.workers())
            before = len(load.answered)
            os.kill(running.process.pid, signal.SIGHUP)
            wait_until(lambda: not old & set(running.workers()), "new workers")  # noqa: B023
            wait_until(lambda: len(load.answered) > before + 500, "some load")  # noqa: B023
        load.stop()
        assert load.refused == 0
        assert_nothing_lost(load, requests)


def test_recycled_workers_lose_nothing(tmp_path: Path) -> None:
    """max_requests replaces a worker after some hundred requests, again and again."""
    recycling = ("--max-requests", "150", "--max-requests-jitter", "50")
    with counting(tmp_path, *recycling) as (running, requests, path):
        load = Load(("127.0.0.1", running.port), path)
        wait_until(
            lambda: running.log.count("Autorestarting") >= 2 * ROUNDS, "recycling", limit_s=120
        )
        load.stop()
        assert load.refused == 0
        assert_nothing_lost(load, requests)


def test_an_upgrade_loses_nothing(tmp_path: Path) -> None:
    """USR2 starts a new arbiter on the same sockets, and TERM ends the old one."""
    pid_file = tmp_path / "pid"
    with counting(tmp_path, "--pid", str(pid_file)) as (running, requests, path):
        load = Load(("127.0.0.1", running.port), path)
        arbiter = running.process.pid
        try:
            for _ in range(ROUNDS):
                before = len(load.answered)
                os.kill(arbiter, signal.SIGUSR2)
                successor = wait_until(lambda: pid_in(Path(f"{pid_file}.2")), "a new arbiter")
                wait_until(lambda: len(children(successor)) == 2, "its workers")  # noqa: B023
                wait_until(lambda: _all_boot(running, successor), "its workers to serve")  # noqa: B023
                os.kill(arbiter, signal.SIGTERM)
                wait_until(lambda: not lives(arbiter), "the old arbiter's end")  # noqa: B023
                arbiter = successor
                wait_until(lambda: pid_in(pid_file) == arbiter, "its promotion")  # noqa: B023
                wait_until(lambda: len(load.answered) > before + 500, "some load")  # noqa: B023
            load.stop()
        finally:
            if arbiter != running.process.pid:
                os.kill(arbiter, signal.SIGTERM)
                wait_until(lambda: not lives(arbiter), "the last arbiter's end")
        assert load.refused == 0
        assert_nothing_lost(load, requests)


def test_a_stop_answers_what_was_accepted(tmp_path: Path) -> None:
    """After SIGTERM new clients are refused in the end; who was accepted gets an answer."""
    with counting(tmp_path, COUNTING_SLEEP="0.2") as (running, requests, path):
        load = Load(("127.0.0.1", running.port), path)
        wait_until(lambda: len(load.answered) > 200, "some load")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=20) == 0
        load.stop()
        assert_nothing_lost(load, requests)


def test_a_killed_worker_fails_its_own_requests_only(tmp_path: Path) -> None:
    """kill -9 under load: what failed had reached that worker, or its connections' next ones."""
    with counting(tmp_path, COUNTING_SLEEP="0.1") as (running, requests, path):
        load = Load(("127.0.0.1", running.port), path)
        for _ in range(ROUNDS):
            before = len(load.answered)
            victim = running.workers()[0]
            failed = set(load.failures)
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: victim not in running.workers(), "its end")  # noqa: B023
            wait_until(lambda: len(running.workers()) == 2, "its successor")
            wait_until(lambda: len(load.answered) > before + 200, "some load")  # noqa: B023
            lines = [line.split() for line in requests.read_text().splitlines()]
            by = {number: int(pid) for number, pid in lines if number.isdigit()}
            for number in set(load.failures) - failed:
                assert by.get(str(number), victim) == victim
        load.stop()
        assert set(load.statuses) == {200}
        seen = written(requests)
        assert all(seen[str(number)] == 1 for number in load.answered)


def test_a_release_that_does_not_load_is_refused(tmp_path: Path) -> None:
    """A HUP with a SyntaxError in the application keeps the old workers, and says so once."""
    app = tmp_path / "release.py"
    good = "from tests.e2e.counting import app\n"
    app.write_text(good)
    environ = {"COUNTING": str(tmp_path / "requests"), "PYTHONPATH": str(tmp_path)}
    with service(
        environ, "-k", "greenline.worker.GreenWorker", "-w", "2",
        target="release:app", config=NO_CONFIG, wait=False,
    ) as running:  # fmt: skip
        wait_until(lambda: all_answer(running), "the first release")
        old = set(running.workers())
        load = Load(("127.0.0.1", running.port))
        for bad in ("def (", "raise RuntimeError('no')", "import sys; sys.exit('a bad setting')"):
            refusals = running.log.count("reload refused")
            app.write_text(bad)
            os.kill(running.process.pid, signal.SIGHUP)
            wait_until(lambda: running.log.count("reload refused") == refusals + 1, "the line")  # noqa: B023
            assert set(running.workers()) == old
        assert "a bad setting" in running.log
        app.write_text(good)
        os.kill(running.process.pid, signal.SIGHUP)
        wait_until(lambda: not old & set(running.workers()), "the good release")
        load.stop()
        assert_nothing_lost(load, tmp_path / "requests")


def test_a_connection_that_idles_is_closed_when_the_proxy_gave_it_up(tmp_path: Path) -> None:
    """A stop does not close what nginx may be about to use: only after its own idle time."""
    environ = {"GREENLINE_PROXY_KEEPALIVE": "2"}
    with counting(tmp_path, "--keep-alive", "60", **environ) as (running, _, _):
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as idle:
            idle.sendall(b"GET /count?a HTTP/1.1\r\nHost: x\r\n\r\n")
            assert idle.recv(65_536).startswith(b"HTTP/1.1 200")
            started = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            wait_until(lambda: _refuses(running.port), "the end of accepting")
            idle.sendall(b"GET /count?b HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = idle.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"Connection: close" in answer
            assert idle.recv(1) == b""
        assert running.process.wait(timeout=20) == 0
        assert time.monotonic() - started < 10


def test_an_idle_connection_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    """It is closed when the proxy's idle time is over, long before our own."""
    environ = {"GREENLINE_PROXY_KEEPALIVE": "1"}
    with counting(tmp_path, "--keep-alive", "60", **environ) as (running, _, _):
        with socket.create_connection(("127.0.0.1", running.port), timeout=20) as idle:
            idle.sendall(b"GET /count?a HTTP/1.1\r\nHost: x\r\n\r\n")
            assert idle.recv(65_536).startswith(b"HTTP/1.1 200")
            answered = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            assert idle.recv(1) == b""
            assert 0.9 < time.monotonic() - answered < 10
        assert running.process.wait(timeout=20) == 0


def test_a_request_beyond_the_graceful_timeout_is_cut_and_named(tmp_path: Path) -> None:
    """It is answered 503 and has a line in the log; the exit status is 0 all the same."""
    with counting(tmp_path, "--graceful-timeout", "4", COUNTING_SLEEP="60") as (running, _, _):
        with socket.create_connection(("127.0.0.1", running.port), timeout=20) as slow:
            slow.sendall(b"GET /count/for/ever?1 HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: "1" in written(tmp_path / "requests"), "the request to begin")
            running.process.send_signal(signal.SIGTERM)
            answer = slow.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after" in answer.lower()
        assert running.process.wait(timeout=20) == 0
        assert running.log.count("cut after the graceful timeout: GET /count/for/ever") == 1


@pytest.mark.parametrize(
    ("ending", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_request_in_progress_at_the_stop_is_answered_with_close(
    ending: signal.Signals, status: int, tmp_path: Path
) -> None:
    """It comes after SIGTERM, or the end of the arbiter, and says that it is the last one."""
    with counting(tmp_path, "--keep-alive", "60", COUNTING_SLEEP="1") as (running, requests, _):
        with socket.create_connection(("127.0.0.1", running.port), timeout=20) as slow:
            slow.sendall(b"GET /count?1 HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: "1" in written(requests), "the request to begin")
            workers = running.workers()
            running.process.send_signal(ending)
            answer = slow.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"Connection: close" in answer
        assert running.process.wait(timeout=20) == status
        wait_until(lambda: not any(map(lives, workers)), "the end of the workers")


def test_a_request_in_another_protocol_is_finished_as_well(tmp_path: Path) -> None:
    """A stop waits for uwsgi as for HTTP."""
    requests = tmp_path / "requests"
    port = free_port()
    command = [
        sys.executable, "-m", "gunicorn", "-c", NO_CONFIG, "-k", "greenline.worker.GreenWorker",
        "--protocol", "uwsgi", "--bind", f"127.0.0.1:{port}", "tests.e2e.counting:app",
    ]  # fmt: skip
    environ = {**os.environ, "COUNTING": str(requests), "COUNTING_SLEEP": "1"}
    process = subprocess.Popen(command, cwd=CHECKOUT, env=environ, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: not _refuses(port), "the worker to listen")
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(uwsgi.packet(REQUEST_METHOD="GET", PATH_INFO="/count", QUERY_STRING="u"))
            wait_until(lambda: requests.exists() and "u" in written(requests), "it to begin")
            process.send_signal(signal.SIGTERM)
            assert b" 200 OK" in client.recv(65_536)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()


def test_who_waits_in_the_backlog_at_the_stop_is_answered(tmp_path: Path) -> None:
    """The hub was busy when they came, and SIGTERM with them: closing would reset them."""
    (tmp_path / "busy.py").write_text(
        "from gevent.monkey import get_original\n"
        "def app(environ, start_response):\n"
        "    if environ['PATH_INFO'] == '/block':\n"
        "        get_original('time', 'sleep')(1.5)\n"
        "    start_response('200 OK', [('Content-Length', '0')])\n"
        "    return []\n"
    )
    with service(
        {"PYTHONPATH": str(tmp_path)}, "-k", "greenline.worker.GreenWorker", "-w", "1",
        target="busy:app", config=NO_CONFIG, wait=False,
    ) as running:  # fmt: skip
        wait_until(lambda: not _refuses(running.port), "the worker to listen")
        assert running.get("/").status == 200
        blocking = socket.create_connection(("127.0.0.1", running.port), timeout=20)
        blocking.sendall(b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.3)  # it blocks now, or a little later: no matter
        waiting = [
            socket.create_connection(("127.0.0.1", running.port), timeout=20) for _ in range(30)
        ]
        for one in waiting:
            one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        running.process.send_signal(signal.SIGTERM)
        for one in (blocking, *waiting):
            assert one.recv(65_536).startswith(b"HTTP/1.1 200")
            one.close()
        assert running.process.wait(timeout=20) == 0


def test_a_worker_that_gets_sigterm_while_it_boots_stops(tmp_path: Path) -> None:
    """Before it has its own handlers gunicorn loses the signal, and waits for it in vain."""
    pid_file = tmp_path / "pid"
    config = tmp_path / "early.conf.py"
    config.write_text(
        "import os, pathlib, signal\n"
        "control_socket_disable = True\n"
        "def post_fork(server, worker):\n"
        f"    pid_file = pathlib.Path({str(pid_file)!r})\n"
        "    if not pid_file.exists():\n"
        "        pid_file.write_text(str(os.getpid()))\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    with service(
        {"COUNTING": str(tmp_path / "requests")}, "-k", "greenline.worker.GreenWorker", "-w", "1",
        target="tests.e2e.counting:app", config=str(config), wait=False,
    ) as running:  # fmt: skip
        early = wait_until(lambda: pid_in(pid_file), "the worker that gets SIGTERM at once")
        wait_until(lambda: early not in running.workers(), "its end", limit_s=10)
        wait_until(lambda: not _refuses(running.port), "the next one to listen")
        assert running.get("/count?probe").status == 200


def test_a_drain_delay_goes_on_serving(tmp_path: Path) -> None:
    """For DRAIN_DELAY new clients are served, with Connection: close; then they are refused."""
    with counting(tmp_path, DRAIN_DELAY="2") as (running, _, _):
        running.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        while time.monotonic() - started < 1:
            answer = running.get("/count?later")
            assert answer.status == 200
        assert answer.headers["Connection"] == "close"
        wait_until(lambda: _refuses(running.port), "the end of accepting", limit_s=10)
        assert running.process.wait(timeout=20) == 0


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def _all_boot(running: Service, arbiter: int) -> bool:
    return all(f"Booting worker with pid: {pid}" in running.log for pid in children(arbiter))


def test_an_upgrade_of_python_m_gunicorn_starts(tmp_path: Path) -> None:
    """The new arbiter begins by -m again: by its file, gunicorn's folder hides Python's http."""
    pid_file, port = tmp_path / "pid", free_port()
    running = Service(
        subprocess.Popen(
            [
                sys.executable, "-X", "dev", "-m", "gunicorn", "-c", NO_CONFIG, "--pid", pid_file,
                "-k", "greenline.worker.GreenWorker", "-w", "1", "--bind", f"127.0.0.1:{port}",
                "tests.e2e.counting:app",
            ],
            cwd=CHECKOUT,
            env=os.environ | {"COUNTING": str(tmp_path / "requests")},
        ),
        port,
        tmp_path / "log",
    )  # fmt: skip
    arbiter = running.process.pid
    try:
        wait_until(lambda: _answers(running), "the service")
        os.kill(arbiter, signal.SIGUSR2)
        successor = wait_until(lambda: pid_in(Path(f"{pid_file}.2")), "a new arbiter")
        wait_until(lambda: len(children(successor)) == 1, "its worker")
        os.kill(arbiter, signal.SIGTERM)
        wait_until(lambda: not lives(arbiter), "the old arbiter's end")
        arbiter = successor
        wait_until(lambda: _answers(running), "its service")
    finally:
        os.kill(arbiter, signal.SIGTERM)
        wait_until(lambda: not lives(arbiter), "the last arbiter's end")


def _answers(running: Service) -> bool:
    try:
        return running.get("/count?probe").status == 200
    except OSError:
        return False
