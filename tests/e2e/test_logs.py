"""The log as JSON and as text: one shape for all lines, and no secret in any of them."""

import base64
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.hosting import NO_CONFIG, WORKER, hosting
from tests.e2e.releases import Releases, all_serve
from tests.helpers.forms import some
from tests.helpers.keys import make_key
from tests.helpers.support import (
    BIN,
    CHECKOUT,
    Databases,
    Service,
    environ,
    free_port,
    service,
    wait_until,
)

TARGET, FLASK = "tests.e2e.logged:app", "tests.e2e.logged:shop"
DJANGO = "tests.e2e.logged_django:app"
JSON = {"GREENLINE_LOG": "json"}
FIELDS = ["time", "level", "logger", "message", "request_id", "route", "worker"]
KEY, PASSWORD = "s3cr3t-k3y", "s3cr3t-p4ssw0rd"
SECRETS = (KEY, PASSWORD, base64.b64encode(f"user:{PASSWORD}".encode()).decode())
Lines = list[dict[str, Any]]


def lines(running: Service) -> Lines:
    """Return the lines of JSON; each line is one, with the fields that all have."""
    text = running.log
    found: Lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    for each in found:
        assert list(each)[: len(FIELDS)] == FIELDS
        assert each["time"].endswith("Z")
    return found


def of(running: Service, word: str, logger: str = "") -> Lines:
    """Return the lines with *word* in their message."""
    return [each for each in lines(running) if word in each["message"] and logger in each["logger"]]


def one(running: Service, word: str, logger: str = "") -> dict[str, Any]:
    """Wait for the only line with *word* in its message, and return it."""
    wait_until(lambda: of(running, word, logger), f"a line with {word}")
    (line,) = of(running, word, logger)
    return line


@contextmanager
def logging_as(
    target: str, *arguments: str, configured: str = "none", **more: str
) -> Iterator[Service]:
    """Run the worker with lines of JSON."""
    with hosting(target, *arguments, **JSON, CONFIGURED=configured, **more) as running:
        yield running


@pytest.fixture(scope="module")
def hosted() -> Iterator[Service]:
    """An application that has not configured logging, with lines of JSON."""
    with logging_as(TARGET) as running:
        yield running


@pytest.mark.parametrize(
    ("target", "configured"),
    [(TARGET, "none"), (TARGET, "basic"), (TARGET, "dict"), (FLASK, "none")],
    ids=["WSGI", "WSGI, basicConfig", "WSGI, dictConfig", "Flask"],
)
def test_each_line_has_the_request_the_route_and_the_worker(
    target: str, configured: str, tmp_path: Path
) -> None:
    """A warning, an exception and their access lines; and the lines of the arbiter have a shape."""
    own = tmp_path / "own"
    with logging_as(target, configured=configured, OWN_FILE=str(own)) as running:
        (worker,) = running.workers()
        assert running.get("/warn", headers={"X-Request-Id": "warned"}).status == 200
        assert running.get("/raise?a=b").status == 500
        warned = one(running, "low stock: 3")
        named = {name: warned[name] for name in ("level", "logger", "item", *FIELDS[4:])}
        assert named == {
            "level": "warning", "logger": "shop", "item": 7, "request_id": "warned",
            "route": "/warn", "worker": worker,
        }  # fmt: skip
        access = one(running, "GET /warn 200", "gunicorn.access")
        assert (access["request_id"], access["worker"]) == ("warned", worker)
        (failed,) = wait_until(
            lambda: [each for each in lines(running) if "exception" in each], "the exception"
        )
        assert (failed["level"], failed["route"]) == ("error", "/raise")
        assert "/raise" in failed["message"]
        assert failed["exception"]["type"] == "ValueError"
        assert failed["exception"]["causes"] == [{"type": "KeyError", "message": "'a'"}]
        assert failed["exception"]["stack"].endswith("\nValueError: broken")
        # The request had no id: its lines have one all the same.
        access = one(running, "GET /raise 500", "gunicorn.access")
        assert access["request_id"] == failed["request_id"] != "-"
        assert one(running, "Listening at")["worker"] == running.process.pid
        assert one(running, "loading")["worker"] == worker
        running.stop()
        exiting = one(running, "Worker exiting")
        assert (exiting["worker"], exiting["request_id"]) == (worker, None)
        assert one(running, "Handling signal: term")["worker"] == running.process.pid
    # A handler of the application that writes elsewhere keeps its format.
    if configured == "dict":
        assert "WARNING low stock: 3\n" in own.read_text()


def test_django_logs_its_request_as_a_type() -> None:
    """It passes the request itself, whose text has the query."""
    with logging_as(DJANGO) as running:
        assert running.get(f"/raise?key={KEY}", headers={"X-Request-Id": "r1"}).status == 500
        failed = one(running, "Internal Server Error: /raise")
        assert failed["request"] == "django.core.handlers.wsgi.WSGIRequest"
        assert (failed["status_code"], failed["request_id"]) == (500, "r1")
        assert failed["exception"]["message"] == "broken"
        assert KEY not in running.log


def test_what_runs_outside_of_a_request_says_so(hosted: Service) -> None:
    """A greenlet's line has no request; a greenlet and a thread that fail have a line each."""
    assert hosted.get("/spawn").status == 200
    line = one(hosted, "in a greenlet")
    assert (line["request_id"], line["route"]) == (None, None)
    wait_until(lambda: len(of(hosted, " failed", "uncaught")) == 2, "both lines")
    for each in of(hosted, " failed", "uncaught"):
        assert each["exception"]["message"] == "broken"


def test_what_ends_a_late_request_names_it() -> None:
    """The hub logs it, not the greenlet of the request."""
    with logging_as(TARGET, REQUEST_TIMEOUT="0.5") as running:
        assert running.get("/swallow?a=b", headers={"X-Request-Id": "late"}).status == 504
        line = one(running, "not answered within 0.5 s")
        assert (line["request_id"], line["route"]) == ("late", "/swallow")
        assert line["message"].startswith("GET /swallow: ")


def test_a_trace_is_in_the_lines_of_its_requests(hosted: Service) -> None:
    """Those of the application and the access line; no other has the field."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    header = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    assert hosted.get("/warn", headers=header).status == 200
    assert one(hosted, "low stock")["trace_id"] == trace
    assert one(hosted, "GET /warn 200")["trace_id"] == trace
    assert {each["message"] for each in lines(hosted) if "trace_id" in each} == {
        "low stock: 3", "GET /warn 200",
    }  # fmt: skip


def test_a_malformed_request_has_nothing_of_the_one_before_it(hosted: Service) -> None:
    """On one connection, with one greenlet: its line has an id of its own, and no route."""
    good = b"GET /body HTTP/1.1\r\nHost: h\r\nX-Request-Id: good\r\n\r\n"
    said = exchanged(hosted.port, good + b"GET / HTTP/1.1\r\nHost: h\r\nbad header\r\n\r\n")
    assert b"400 Bad Request" in said
    line = one(hosted, "Invalid request")
    assert line["request_id"] not in ("good", None)
    assert line["route"] == "-"


def test_the_access_log_alone_may_be_gunicorns() -> None:
    """Its setting overrides the other one."""
    arguments = ("--access-logfile", "-", "--access-logformat", "LOG %(m)s %(U)s")
    with hosting(TARGET, *arguments, **JSON, GREENLINE_ACCESS_LOG="gunicorn") as running:
        assert running.get("/warn").status == 200
        wait_until(lambda: "LOG GET /warn\n" in running.log, "gunicorn's line")
        text = [line for line in running.log.splitlines() if not line.startswith("{")]
        assert set(text) <= {"LOG GET /warn", "LOG GET /count"}
        assert '"message":"low stock: 3"' in running.log


def test_the_error_log_of_gunicorn_is_json_in_a_file_too(tmp_path: Path) -> None:
    """Also after a reload, which configures gunicorn's log again."""
    log = tmp_path / "errors"
    with logging_as(TARGET, "--error-logfile", str(log)) as running:
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.read_text().count("Booting worker") == 2, "another worker")
        running.stop()
    messages = [json.loads(line)["message"] for line in log.read_text().splitlines()]
    assert "Hang up: Master" in messages
    assert messages[-1] == "Shutting down: Master"


def test_the_reason_of_a_refused_reload_is_a_line_with_its_exception(tmp_path: Path) -> None:
    """In place of a traceback between the lines."""
    releases = Releases(tmp_path)
    releases.write(more="raw_env = ['GREENLINE_LOG=json']")
    with releases.served() as running:
        releases.write("raise ValueError('not this one')", more="raw_env = ['GREENLINE_LOG=json']")
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reload refused" in running.log, "the refusal")
        text = [line for line in running.log.splitlines() if 'cannot be loaded"' in line]
        (failed,) = map(json.loads, text)
        assert failed["exception"]["type"] == "ValueError"
        assert "Traceback" not in [line.split(" ")[0] for line in running.log.splitlines()]


def test_long_lines_of_several_workers_are_whole_on_a_pipe() -> None:
    """Each is JSON and at most as long as what a pipe takes in one piece."""
    port = free_port()
    command = [BIN / "gunicorn", "-c", NO_CONFIG, "-b", f"127.0.0.1:{port}", *WORKER[:2], "-w", "2"]
    process = subprocess.Popen(
        [*command, TARGET], cwd=CHECKOUT, env=environ(JSON), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    running = Service(process, port, Path(os.devnull))
    try:
        wait_until(lambda: answers(running), "a worker")
        with ThreadPoolExecutor(8) as clients:
            statuses = list(clients.map(lambda _: running.get("/long").status, range(100)))
        assert statuses == [200] * 100
        process.terminate()
        said = process.communicate(timeout=60)[0]
    finally:
        process.kill()
        process.wait()
    written = said.splitlines(keepends=True)
    assert max(map(len, written)) <= select.PIPE_BUF
    messages = [json.loads(line)["message"] for line in written]
    assert len([each for each in messages if each.startswith("xxx")]) == 100


def answers(running: Service) -> bool:
    with suppress(OSError):
        return running.get("/none").status == 404
    return False


def exchanged(port: int, sent: bytes) -> bytes:
    """Send *sent*, end that side, and return what comes back."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := client.recv(65_536):
                received += data
    return received


HEAD = (
    f"?key={KEY} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\n"
    f"Cookie: session={KEY}\r\nX-Api-Key: {KEY}\r\nConnection: close\r\n"
)
MALFORMED = (
    f"GET /a{HEAD}Authorization Bearer {KEY}\r\n\r\n",
    f"GET /a{HEAD}Authorization Bearer {KEY} : a\r\n\r\n",
    f"GET /a{HEAD}A: b\r\n Authorization: {KEY}\r\n\r\n",
    f"GET /a?key={KEY} HTTP/9.x\r\n\r\n",
    f"{KEY}\r\n\r\n",
    f'{{"password": "{KEY}"}}\r\n\r\n',
    f"POST /body{HEAD}Transfer-Encoding: chunked\r\n\r\n{KEY}\r\n",
    f"POST /body{HEAD}Transfer-Encoding: chunked\r\n\r\n2\r\nab{KEY}\r\n",
    f"POST /body{HEAD}Content-Length: 1000\r\n\r\n{KEY}",
    f"POST /body{HEAD}Content-Length: 100000\r\n\r\n{KEY}",
    f"GET /a{HEAD}",
    f"GET /a?key={KEY}",
)


@pytest.mark.parametrize(("form", "configured"), some([("json", "none"), ("text", "basic")]))
def test_no_line_has_a_secret(form: str, configured: str, tmp_path: Path) -> None:
    """Whatever is answered, at the level debug: what a client sends, and what the settings have."""
    settings = {
        "GREENLINE_LOG": form, "CONFIGURED": configured, "HELD": str(tmp_path / "held"),
        "OPEN": str(tmp_path / "open"), "GREENLINE_MAX_IN_PROGRESS": "1",
        "GREENLINE_MAX_WAITING": "0", "GREENLINE_MAX_BODY_BYTES": "10000", "REQUEST_TIMEOUT": "1",
        "GREENLINE_ACCESS_LOG": "json", "OPS_TOKEN": KEY, "GREENLINE_OPS_TOKEN": KEY,
        "DATABASE_URL": f"postgresql://user:{PASSWORD}@127.0.0.1:1/none",
        "MONGODB_URI": f"mongodb://user:{PASSWORD}@127.0.0.1:1/none",
        "GREENLINE_OPS_BIND": f"127.0.0.1:{free_port()}",
    }  # fmt: skip
    arguments = ("--log-level", "debug", "--env", f"MY_TOKEN={KEY}")
    with hosting(TARGET, *arguments, **settings) as running, ThreadPoolExecutor(1) as clients:
        # First what a worker that waits for nothing else answers.
        for path in ("/warn", "/none", "/raise", "/short", "/spawn", "/block", "/swallow"):
            exchanged(running.port, f"GET {path}{HEAD}\r\n".encode())
        for each in MALFORMED:
            exchanged(running.port, each.encode())
        held = clients.submit(exchanged, running.port, f"GET /hold{HEAD}\r\n".encode())
        wait_until(Path(settings["HELD"]).exists, "a request in progress")
        assert b" 503 " in exchanged(running.port, f"GET /warn{HEAD}\r\n".encode())
        Path(settings["OPEN"]).touch()
        assert b" 200 " in held.result()
        running.stop()
        said = running.log
    for each in (
        "low stock", "Error handling request GET /raise?[hidden]", "the hub was blocked for",
        "not answered within 1 s", "Invalid HTTP Header: [hidden]", "Invalid chunk size: [hidden]",
        "raw_env: [hidden]", "Content-Length", "Invalid HTTP request line: [hidden]",
    ):  # fmt: skip
        assert each in said, each
    assert [line for line in said.splitlines() if any(map(line.__contains__, SECRETS))] == []


def test_the_service_has_one_shape_and_logs_no_key(databases: Databases) -> None:
    """Its own lines as well, at the level debug, from the first one on."""
    key = make_key(databases.environ, "logged", "read")
    password = databases.environ["DATABASE_URL"].replace("greenline@", f"greenline:{PASSWORD}@", 1)
    settings = {
        **databases.environ, **JSON, "AUTH": "on", "DATABASE_URL": password, "OPS_TOKEN": KEY,
        "LOG_LEVEL": "debug",
    }  # fmt: skip
    assert PASSWORD in password
    with service(settings) as running:
        for token, name in ((key, "known"), (f"{key}x", "unknown"), (KEY, "of-ops")):
            header = {"Authorization": f"Bearer {token}", "X-Request-Id": name}
            for path in ("/books", "/books/x?nonsense=1", "/none", "/ops/budget"):
                running.get(path, headers=header)
        exchanged(running.port, f"GET /books\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        access = one(running, "GET /books 200", "gunicorn.access")
        assert (access["request_id"], access["route"]) == ("known", "/books")
        assert one(running, "GET /ops/budget 200")["request_id"] == "of-ops"
        running.stop()
        assert of(running, "checked out backend")
        assert {each["worker"] for each in lines(running)} > {running.process.pid}
        assert not any(map(running.log.__contains__, (key, KEY, PASSWORD)))


@contextmanager
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """Open a terminal; give the end of a process, and a function that returns what it shows."""
    ours, its = pty.openpty()
    shown = b""

    def read() -> str:
        nonlocal shown
        while select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 65_536)
        return shown.decode()

    try:
        yield its, read
    finally:
        os.close(ours)
        os.close(its)


@pytest.mark.parametrize("configured", some(["none", "basic"]))
def test_a_terminal_shows_the_levels_of_warnings_in_colours(configured: str) -> None:
    """gunicorn's lines and the application's, without a line of configuration."""
    port = free_port()
    command = [sys.executable, BIN / "gunicorn", "-c", NO_CONFIG, "-b", f"127.0.0.1:{port}"]
    with terminal() as (its, shown):
        process = subprocess.Popen(
            [*command, *WORKER, TARGET], cwd=CHECKOUT, stdout=its, stderr=its,
            env=environ({"TERM": "xterm", "CONFIGURED": configured, "NO_COLOR": ""}),
        )  # fmt: skip
        try:
            running = Service(process, port, Path(os.devnull))
            wait_until(lambda: shown() and answers(running), "the worker")
            assert running.get("/raise").status == 500
            assert running.get("/warn").status == 200
            wait_until(lambda: "low stock" in shown(), "the warning")
            assert "[\x1b[31mERROR\x1b[0m] Error handling request GET /raise" in shown()
            assert "[INFO] Listening at" in shown()
            if configured == "basic":
                assert "[\x1b[33mWARNING\x1b[0m] low stock: 3" in shown()
        finally:
            process.terminate()
            wait_until(lambda: (shown(), process.poll() is not None)[1], "the end")


def test_text_is_what_it_was_where_there_is_no_terminal() -> None:
    """No colours, no JSON: each handler's own format."""
    with hosting(TARGET, CONFIGURED="dict", TERM="xterm") as running:
        assert running.get("/warn").status == 200
        wait_until(lambda: "WARNING low stock: 3\n" in running.log, "the line")
        assert "[INFO] Listening at" in running.log
        assert "\x1b" not in running.log
        assert "{" not in running.log


def test_a_release_that_makes_the_setting_invalid_is_refused(tmp_path: Path) -> None:
    """Its reason is a line of JSON, as the running release has it."""
    releases = Releases(tmp_path)
    releases.write(more="raw_env = ['GREENLINE_LOG=json']")
    with releases.served() as running:
        releases.write(more="raw_env = ['GREENLINE_LOG=nonsense']")
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reload refused" in running.log, "the refusal")
        reason = "greenline: GREENLINE_LOG: 'nonsense' is not one of text, json"
        assert f'"message":"{reason}"' in running.log
        wait_until(lambda: all_serve(running), "the old workers")
