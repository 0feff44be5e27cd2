"""The worker hosts applications that know nothing of it; test_pages.py runs those of the docs."""

import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.hosting import NO_CONFIG, WORKER, accepts, hosting
from tests.helpers.load import Load
from tests.helpers.support import CHECKOUT, service, wait_until


def test_what_would_block_the_worker_is_named_at_the_start(tmp_path: Path) -> None:
    """A driver that cannot yield is logged by its name, once."""
    (tmp_path / "cx_Oracle.py").write_text("")
    (tmp_path / "old.py").write_text("import cx_Oracle\nfrom tests.e2e.counting import app\n")
    with hosting("old:app", PYTHONPATH=str(tmp_path), COUNTING=str(tmp_path / "j")) as running:
        wait_until(lambda: "cx_Oracle" in running.log, "the line")
        assert running.log.count("cx_Oracle") == 1


def test_a_wrong_setting_of_the_worker_ends_the_start_in_one_line() -> None:
    """The variable is named, and nothing serves."""
    with service(
        {"GREENLINE_MAX_IN_PROGRESS": "many"}, *WORKER,
        target="tests.e2e.counting:app", config=NO_CONFIG, wait=False,
    ) as running:  # fmt: skip
        assert running.process.wait(timeout=60) != 0
        assert "greenline: GREENLINE_MAX_IN_PROGRESS: 'many'" in running.log
        assert "Traceback" not in running.log


def test_beyond_the_limit_a_request_is_refused_at_once_and_its_body_read(tmp_path: Path) -> None:
    """503 with Retry-After, on a connection that stays; health checks pass."""
    environ = {
        "COUNTING": str(tmp_path / "j"),
        "COUNTING_SLEEP": "3",
        "GREENLINE_MAX_IN_PROGRESS": "2",
        "GREENLINE_MAX_WAITING": "0",
    }
    with hosting("tests.e2e.counting:app", **environ) as running, ThreadPoolExecutor(2) as clients:
        busy = [clients.submit(running.get, f"/count?{number}") for number in range(2)]
        wait_until(lambda: (tmp_path / "j").read_text().count("\n") >= 3, "both to be worked on")
        with socket.create_connection(("127.0.0.1", running.port), timeout=60) as sock:
            body = b"x" * 500_000
            head = b"POST /count?9 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            for _ in range(2):
                started = time.monotonic()
                sock.sendall(head + body)
                answer = sock.recv(65_536)
                assert answer.startswith(b"HTTP/1.1 503")
                assert b"Retry-After: 1\r\n" in answer
                assert b"Connection: keep-alive" in answer
                assert time.monotonic() - started < 1.5
        assert running.get("/healthz?probe").status == 200
        assert [one.result().status for one in busy] == [200, 200]


def test_two_hundred_who_hang_up_in_the_queue_are_never_worked_on(tmp_path: Path) -> None:
    """They leave the queue; who comes after them is served."""
    requests = tmp_path / "j"
    environ = {
        "COUNTING": str(requests),
        "COUNTING_SLEEP": "2",
        "GREENLINE_MAX_IN_PROGRESS": "1",
        "GREENLINE_MAX_WAITING": "300",
        "GREENLINE_MAX_WAIT": "60",
    }
    with hosting("tests.e2e.counting:app", **environ) as running, ThreadPoolExecutor(1) as clients:
        busy = clients.submit(running.get, "/count?first")
        wait_until(lambda: "first" in requests.read_text(), "the first to be worked on")
        callers = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(200)]
        for caller in callers:
            caller.sendall(b"GET /count?gone HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(3):  # by now all of them were read: who came later is answered
            assert running.get("/healthz?probe").status == 200
        for caller in callers:
            caller.close()
        assert not busy.done()
        assert running.get("/count?after").status == 200
        assert busy.result().status == 200
    asked = Counter(line.split()[0] for line in requests.read_text().splitlines())
    assert asked["gone"] == 0
    assert asked["after"] == 1


def test_without_descriptors_it_pauses_says_so_once_and_recovers(tmp_path: Path) -> None:
    """EMFILE: clients wait in the backlog until others leave."""
    requests = tmp_path / "j"
    limits = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))\n"
    config = tmp_path / "few.conf.py"
    config.write_text(f"{limits}control_socket_disable = True\n")
    with service(
        {"COUNTING": str(requests)}, *WORKER, "--keep-alive", "60",
        target="tests.e2e.counting:app", config=str(config), wait=False,
    ) as running:  # fmt: skip
        wait_until(lambda: accepts(running), "the worker to serve")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft > 200, (soft, hard)
        callers = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(100)]
        wait_until(lambda: "no client can be accepted" in running.log, "the line")
        with ThreadPoolExecutor(1) as clients:
            late = clients.submit(running.get, "/count?late")
            time.sleep(1.5)  # several pauses, which are not logged again
            assert not late.done()
            for caller in callers:
                caller.close()
            assert late.result(timeout=40).status == 200
        assert running.log.count("no client can be accepted") == 1
        assert "Traceback" not in running.log


def test_a_blocked_hub_is_logged_with_the_culprit(tmp_path: Path) -> None:
    """A handler that blocks it for half a second names itself in the log."""
    (tmp_path / "busy.py").write_text(
        "from gevent.monkey import get_original\n"
        "def app(environ, start_response):\n"
        "    if environ['PATH_INFO'] == '/block':\n"
        "        block()\n"
        "    start_response('200 OK', [('Content-Length', '0')])\n"
        "    return []\n"
        "def block():\n"
        "    get_original('time', 'sleep')(0.5)\n"
    )
    with hosting("busy:app", PYTHONPATH=str(tmp_path)) as running:
        # Again, as it has one line in ten seconds: a slow start may have had it.
        wait_until(
            lambda: running.get("/block").status == 200 and "in block" in running.log, "the culprit"
        )
        # In gunicorn's format: the application has configured no logging.
        assert re.search(r"^\[.+\] \[\d+\] \[WARNING\] the hub was blocked", running.log, re.M)


def test_a_full_pipe_behind_the_access_log_blocks_no_request(tmp_path: Path) -> None:
    """The log is not read, and 5,000 requests are answered; later it tells how many."""
    command = [
        sys.executable, "-m", "gunicorn", "-c", NO_CONFIG, *WORKER,
        "--bind", f"unix:{tmp_path / 's'}", "tests.e2e.counting:app",
    ]  # fmt: skip
    environ = {
        **os.environ, "GREENLINE_ACCESS_LOG": "json", "COUNTING": str(tmp_path / "j"),
        "COUNTING_SLEEP": "0",
    }  # fmt: skip
    with subprocess.Popen(
        command, cwd=CHECKOUT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_until((tmp_path / "s").exists, "the socket")
            load = Load(str(tmp_path / "s"), clients=20)
            wait_until(lambda: len(load.answered) > 5_000, "the answers", limit_s=60)
            load.stop()
            assert load.failures == {}
            process.terminate()
            assert process.stdout is not None
            lines = process.stdout.read().splitlines()
        finally:
            process.kill()
    entries = [json.loads(line) for line in lines]
    assert all(entry.get("status") == 200 or "lost" in entry for entry in entries)


def test_what_was_counted_is_what_was_logged(tmp_path: Path) -> None:
    """Over two workers, one of them killed and replaced: the sums agree with the lines."""
    (tmp_path / "counted.py").write_text(
        "import json\n"
        "from greenline.telemetry import counters\n"
        "from greenline.flask import Flask\n"
        "app = Flask(__name__)\n"
        "@app.get('/items/<int:number>')\n"
        "def item(number):\n"
        "    return {'number': number}, 200 if number < 5 else 404\n"
        "@app.get('/totals')\n"
        "def totals():\n"
        "    found = counters.totals()\n"
        "    return {json.dumps(key): value for key, value in found.items()}\n"
    )
    environ = {"PYTHONPATH": str(tmp_path), "GREENLINE_ACCESS_LOG": "json"}
    with service(
        environ, "-k", "greenline.worker.GreenWorker", "-w", "2",
        target="counted:app", config=NO_CONFIG, wait=False,
    ) as running:  # fmt: skip
        wait_until(lambda: accepts(running), "a worker")
        for number in range(60):
            assert running.get(f"/items/{number % 7}").status in (200, 404)
        wait_until(lambda: running.log.count('"path":"/items') == 60, "their lines")
        victim = running.workers()[0]
        os.kill(victim, 9)
        wait_until(lambda: victim not in running.workers(), "its end")
        for number in range(40):
            assert running.get(f"/items/{number % 7}").status in (200, 404)
        totals = running.get("/totals").json
        # Of each worker: each writes its lines a moment after the response.
        wait_until(lambda: running.log.count('"path":"/items') == 100, "their lines")
        logged: Counter[tuple[str, int]] = Counter()
        for line in running.log.splitlines():
            if line.startswith("{"):
                entry = json.loads(line)
                logged[entry["route"], entry["status"]] += 1
    counted = {
        (key[1], key[3]): value
        for key, value in ((json.loads(text), value) for text, value in totals.items())
        if key[0] == "requests"
    }
    for key in (("/items/<int:number>", 200), ("/items/<int:number>", 404)):
        assert counted[key] == logged[key] > 20
