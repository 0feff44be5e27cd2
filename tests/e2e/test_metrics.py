"""``/metrics``: the sums over all workers and generations, whatever happens to them."""

import http.client
import os
import pwd
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from greenline.ops.metrics import CACHE_COUNTS, CACHE_VALUES
from tests.e2e.hosting import NO_CONFIG, WORKER, accepts, hosting
from tests.helpers.forms import in_the_long_form
from tests.helpers.load import Load
from tests.helpers.processes import children, lives, ops_process
from tests.helpers.support import CHECKOUT, IS_LONG, Service, free_port, run, service, wait_until

APP = "tests.e2e.watched:app"
RELOADS, KILLS = (10, 5) if IS_LONG else (4, 2)
SLACK_S = 1.0
TOKEN = "sesame"
Address = int | str


def ask(address: Address, path: str = "/metrics", key: str = "") -> tuple[int, str]:
    """Ask the process of the metrics, by its port or its socket."""
    connection = http.client.HTTPConnection("127.0.0.1", 0, timeout=10)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        if isinstance(address, str):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(10)
            connection.sock.connect(address)
        else:
            connection.sock = socket.create_connection(("127.0.0.1", address), timeout=10)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def samples(address: Address) -> list[Sample]:
    status, text = ask(address)
    assert status == 200, text
    return [one for family in text_string_to_metric_families(text) for one in family.samples]


def answers(address: Address) -> bool:
    try:
        return ask(address)[0] == 200
    except OSError:
        return False


def requests(address: Address) -> Counter[tuple[str, str, str]]:
    """Return the counts of requests by route, method and status."""
    found: Counter[tuple[str, str, str]] = Counter()
    for one in samples(address):
        if one.name == "greenline_requests_total":
            key = one.labels["route"], one.labels["method"], one.labels["status"]
            found[key] = int(one.value)
    return found


def value(address: Address, name: str, /, **labels: str) -> float | None:
    for one in samples(address):
        if one.name == name and one.labels == labels:
            return one.value
    return None


@contextmanager
def watching(*arguments: str, **environ: str) -> Iterator[tuple[Service, int]]:
    """Host the application, with its metrics on a port."""
    port = free_port()
    bind = {"GREENLINE_OPS_BIND": f"127.0.0.1:{port}"}
    with hosting(APP, *arguments, **bind, **environ) as running:
        wait_until(lambda: answers(port), "the metrics")
        yield running, port


def workers(arbiter: int) -> set[int]:
    return set(children(arbiter)) - {ops_process(arbiter)}


def test_what_was_asked_is_counted() -> None:
    """By route, method and status; an unknown path, method or application's route is one label."""
    with watching() as (running, port):
        before = requests(port)["-", "GET", "200"]
        for number in range(20):
            assert running.get(f"/books/{number}").status == 200
        for number in range(1_000):
            assert running.get(f"/none/{number}").status == 404
        running.ask("BREW", "/books/1")
        running.get("/wait?0.3")
        found = wait_until(
            lambda: now if (now := requests(port))["/wait", "GET", "200"] else None, "the counts"
        )
        assert found == {
            ("-", "GET", "200"): before,
            ("-", "GET", "404"): 1_000,
            ("/books/<id>", "GET", "200"): 20,
            ("/books/<id>", "other", "200"): 1,
            ("/wait", "GET", "200"): 1,
        }
        part = {"route": "/wait", "part": "application"}
        wait_until(
            lambda: value(port, "greenline_request_part_seconds_count", **part), "the durations"
        )
        assert value(port, "greenline_request_duration_seconds_count", route="/books/<id>") == 21
        summed_s = value(port, "greenline_request_duration_seconds_sum", route="/wait") or 0.0
        assert 0.3 <= round(summed_s, 2) <= 0.3 + SLACK_S
        assert value(port, "greenline_workers") == 1
        assert value(port, "greenline_connections_max") == 1000
        assert (value(port, "greenline_worker_resident_memory_bytes", worker="0") or 0) > 1e7
        bind = {"name": "GREENLINE_OPS_BIND", "value": f"127.0.0.1:{port}"}
        assert value(port, "greenline_setting_info", **bind) == 1


def test_routes_of_django_are_known(empty_database: str) -> None:
    """As its patterns have them; what none matches is one label."""
    given = {"DATABASE_URL": empty_database, "PYTHONPATH": str(CHECKOUT / "examples")}
    run(["python", "examples/django_catalogue.py"], given)
    port = free_port()
    bind = {"GREENLINE_OPS_BIND": f"127.0.0.1:{port}"}
    with hosting("django_catalogue:application", **given, **bind) as running:
        wait_until(lambda: answers(port), "the metrics")
        assert running.get("/books").status == 200
        assert {running.get(f"/none/{number}").status for number in range(5)} == {404}
        found = requests(port)
    assert found["/books", "GET", "200"] == 1
    assert found["-", "GET", "404"] >= 5  # and the probes of the start
    assert {route for route, _, _ in found} == {"/books", "-"}


def test_the_process_has_no_gevent() -> None:
    """Nor an application, nor a driver: it is small, and starts at once."""
    program = "import sys, greenline.ops.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=60, cwd=CHECKOUT, check=True,
    )  # fmt: skip
    modules = set(done.stdout.split())
    assert "greenline.ops.watch" in modules
    assert modules & {"gevent", "greenlet", "psycopg2", "pymongo", "flask", "gunicorn"} == set()


def test_the_page_names_each_metric() -> None:
    """And no others; its command shows them."""
    page = (CHECKOUT / "docs/watch.md").read_text()
    section = page.partition("## Metrics")[2].partition("## Counts")[0]
    shown = set(re.findall(r"`(greenline_\w+?)(?:_total)?`", section))
    shown |= {f"greenline_pool_{name}" for name in re.findall(r"`\.\.\._(\w+)_total`", section)}
    (command,) = re.findall(r"^\$ (curl .*)$", section, re.MULTILINE)
    with watching() as (_, port):
        typed = shlex.split(command.replace("9191", str(port)))
        done = subprocess.run([*typed, "--silent"], capture_output=True, text=True, timeout=30)
    found = set(re.findall(r"^# TYPE (greenline_\w+?)(?:_total)? ", done.stdout, re.MULTILINE))
    # What only psycopg2, a pool or a cache counts is there where the application uses it.
    found |= {"greenline_psycopg2_waiting", "greenline_psycopg2_unpooled"}
    assert found | {f"greenline_cache_{row[1]}" for row in (*CACHE_COUNTS, *CACHE_VALUES)} == shown


def test_no_count_is_lost() -> None:
    """Reloads and kills, under load: counters never go down, and each answer counts."""
    with watching("-w", "2") as (running, port):
        load = Load(("127.0.0.1", running.port), clients=8, path="/books/1")
        key = ("/books/<id>", "GET", "200")
        arbiter, last = running.process.pid, 0

        def until_ended(old: set[int]) -> None:
            wait_until(lambda: not old & workers(arbiter), "the end of workers")
            asked = len(load.answered)
            wait_until(lambda: len(load.answered) > asked, "more answers")

        for number in range(RELOADS + KILLS):
            old = workers(arbiter)
            if number % 3 == 2:
                old = {min(old)}
                os.kill(min(old), signal.SIGKILL)
            else:
                running.process.send_signal(signal.SIGHUP)
            until_ended(old)
            now = requests(port)[key]
            assert now >= last
            last = now
        load.stop()
        answered = load.statuses[200]
        assert load.statuses == {200: answered}
        total = wait_until(
            lambda: now if (now := requests(port)[key]) >= answered else None, "each answer"
        )
        # What a killed worker had answered may not have come to the client.
        assert total <= answered + len(load.failures)


def test_it_answers_while_each_hub_is_blocked(tmp_path: Path) -> None:
    """Neither a blocked hub nor requests that wait keep a scrape from its answer."""
    with watching() as (running, port), ThreadPoolExecutor(4) as clients:
        path = tmp_path / "blocks"
        asked = [clients.submit(running.get, f"/block?{path}")]
        wait_until(path.exists, "the hub to be blocked")
        begun = time.monotonic()
        samples(port)
        assert time.monotonic() - begun < 2 * SLACK_S
        assert not asked[0].done()
        assert asked[0].result().status == 200
        wait_until(lambda: value(port, "greenline_hub_blocks_total"), "the count")

        def is_named() -> bool:
            # A block whose worker waits for a processor most of the time is not the function's.
            running.get(f"/block?{path}")
            return value(port, "greenline_hub_blocks_logged_total", function="watched.app") > 0

        wait_until(is_named, "its name")


def test_it_is_started_again_and_ends_with_the_arbiter() -> None:
    """A kill of it harms nothing; after the arbiter's, by any signal, it is gone."""
    with watching() as (running, port):
        arbiter = running.process.pid
        first = ops_process(arbiter)
        assert first is not None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(first, number)
        assert lives(first)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: ops_process(arbiter) not in (None, first), "another process")
        assert wait_until(lambda: answers(port), "the metrics")
        assert running.get("/books/1").status == 200
        second = ops_process(arbiter)
        assert second is not None
        running.process.kill()
        wait_until(lambda: not lives(second), "its end")


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(each.stat().st_mode & 1 for each in CHECKOUT.parents),
    reason="only root runs workers as another user, who has to be able to read the checkout",
)
def test_it_runs_as_the_user_of_the_workers() -> None:
    """And not as root, where the arbiter does."""
    with watching("--user", "nobody", "--group", "nogroup") as (running, _):
        arbiter = running.process.pid
        processes = [ops_process(arbiter), *workers(arbiter)]
        owners = {Path(f"/proc/{pid}").stat().st_uid for pid in processes}
        assert owners == {pwd.getpwnam("nobody").pw_uid}


def test_another_arbiter_takes_over(tmp_path: Path) -> None:
    """At USR2 the counts go on, over a unix socket, and the new process listens after the old."""
    path, pid_file = tmp_path / "ops.sock", tmp_path / "pid"
    more = {"GREENLINE_OPS_BIND": str(path)}
    with hosting(APP, "--pid", str(pid_file), **more) as running:
        wait_until(lambda: path.exists() and answers(str(path)), "the metrics")
        key = ("/books/<id>", "GET", "200")
        for _ in range(5):
            running.get("/books/1")
        running.process.send_signal(signal.SIGUSR2)
        new = tmp_path / "pid.2"
        wait_until(new.exists, "the new arbiter")
        other = int(new.read_text())
        try:
            wait_until(lambda: workers(other), "its workers")
            wait_until(lambda: f"{path}: [Errno" in running.log, "a try to listen as well")
            assert answers(str(path))
            running.process.send_signal(signal.SIGTERM)
            running.process.wait(60)
            wait_until(lambda: path.exists() and answers(str(path)), "the metrics again")
            for _ in range(5):
                running.get("/books/1")
            wait_until(lambda: requests(str(path))[key] == 10, "all requests")
            assert value(str(path), "greenline_workers") == 1
        finally:
            os.kill(other, signal.SIGTERM)
            wait_until(lambda: not lives(other), "the end")
        wait_until(lambda: not path.exists(), "the end of the socket")


def test_a_taken_port_does_not_end_the_service() -> None:
    """One line says so, the service serves, and it listens when the port is free."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with hosting(APP, GREENLINE_OPS_BIND=f"127.0.0.1:{port}") as running:
            line = f"greenline: no /metrics: GREENLINE_OPS_BIND=127.0.0.1:{port}: "
            wait_until(lambda: line in running.log, "the line")
            assert running.get("/books/1").status == 200
            taken.close()
            wait_until(lambda: answers(port), "the metrics")
            assert running.log.count(line) == 1


@pytest.mark.parametrize(
    ("bind", "reason"),
    [
        ("nowhere", "the port 'nowhere' is not a whole number from 1 to 65535"),
        ("127.0.0.1:0", "the port '0' is not a whole number from 1 to 65535"),
        ("a b:1", "neither host:port nor the path of a unix socket"),
        (f"/{'x' * 120}", "longer than 107 bytes"),
    ],
    ids=["word", "zero", "blank", "long path"],
)
def test_a_wrong_address_ends_the_start_in_one_line(bind: str, reason: str) -> None:
    """The variable is named, and nothing serves."""
    with service(
        {"GREENLINE_OPS_BIND": bind}, *WORKER, target=APP, config=NO_CONFIG, wait=False
    ) as running:
        assert running.process.wait(timeout=60) != 0
        assert "greenline: GREENLINE_OPS_BIND: " in running.log
        assert reason in running.log
        assert "Traceback" not in running.log


def test_the_last_slow_request_is_an_exemplar() -> None:
    """In the format of OpenMetrics, with its id, in the bucket of its duration."""
    with watching(GREENLINE_SLOW_MS="300") as (running, port):
        assert running.get("/wait?0.4", headers={"X-Request-Id": "r-77"}).status == 200
        form = {"Accept": "application/openmetrics-text; version=1.0.0"}

        def lines() -> list[str]:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=form)
            text = urllib.request.urlopen(request, timeout=10).read().decode()
            assert text.endswith("# EOF\n")
            return [line for line in text.splitlines() if "r-77" in line]

        (line,) = wait_until(lines, "the exemplar")
        found = re.fullmatch(
            r'greenline_request_duration_seconds_bucket\{le="([\d.]+)",route="/wait"\} 1\.0 '
            r'# \{request_id="r-77"\} ([\d.]+) [\d.]+',
            line,
        )
        assert found is not None, line
        assert float(found[1]) / 2 < float(found[2]) <= float(found[1])


def test_a_stranger_is_refused() -> None:
    """Where there is a token it is needed, for each path, and is shown nowhere."""
    port = free_port()
    more = {"GREENLINE_OPS_BIND": f"127.0.0.1:{port}", "GREENLINE_OPS_TOKEN": TOKEN}
    with hosting(APP, **more):
        wait_until(lambda: _status(port) == 401, "the process")
        assert ask(port, key="wrong")[0] == ask(port, "/")[0] == 401
        status, text = ask(port, key=TOKEN)
        assert status == 200
        assert TOKEN not in text
        assert ask(port, "/other", key=TOKEN)[0] == 404


def _status(port: int) -> int | None:
    try:
        return ask(port)[0]
    except OSError:
        return None


def test_pages_that_are_left_open_keep_no_scraper_out() -> None:
    """However many follow the events, and never read them."""
    with watching() as (_, port):
        pages = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        try:
            for one in pages:
                one.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
            heads = Counter(one.recv(12) for one in pages)
            assert heads == {b"HTTP/1.1 200": 16, b"HTTP/1.1 503": 4}
            assert ask(port)[0] == 200
        finally:
            for one in pages:
                one.close()


def test_a_slow_sender_is_disconnected() -> None:
    """Also one that sends a byte each second: it may not keep its place."""
    with watching() as (_, port), socket.create_connection(("127.0.0.1", port)) as slow:
        slow.settimeout(1.0)
        begun_s = time.monotonic()
        ended = False
        while not ended and time.monotonic() - begun_s < 60:
            try:
                slow.sendall(b"G")
                ended = slow.recv(1000) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended
        assert ask(port)[0] == 200


@in_the_long_form
def test_scrapers_that_never_read_are_disconnected() -> None:
    """Others are served afterwards, and the service all the time."""
    with watching() as (running, port):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        try:
            for one in silent[:20]:
                one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
            assert running.get("/books/1").status == 200
            assert accepts(running)
            wait_until(lambda: answers(port), "the metrics")
        finally:
            for one in silent:
                one.close()
