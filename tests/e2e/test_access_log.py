"""The lines and counters of each response, and their destinations, over real sockets."""

import json
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.hosting import WORKER, hosting
from tests.helpers.support import Service, service, wait_until

TARGET = "tests.e2e.recorded:app"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The application, and lines of JSON; /hold waits until the file OPEN is there."""
    return {
        "OPEN": str(tmp_path / "open"),
        "HELD": str(tmp_path / "held"),
        "GREENLINE_ACCESS_LOG": "json",
    }


@contextmanager
def configured(tmp_path: Path, text: str, environ: dict[str, str]) -> Iterator[Service]:
    """Run the worker with a configuration file of its own, and gunicorn's access log."""
    config = tmp_path / "logging.conf.py"
    config.write_text(f"control_socket_disable = True\n{text}")
    environ = {**environ, "GREENLINE_ACCESS_LOG": "gunicorn"}
    with service(
        environ, *WORKER, target=TARGET, config=str(config), wait=False
    ) as running:  # fmt: skip
        wait_until(lambda: serves(running), "the worker to serve")
        yield running


def serves(running: Service) -> bool:
    """Return whether the worker answers now."""
    assert running.process.poll() is None, running.log
    try:
        return running.get("/probe").status == 200
    except OSError:
        return False


def entries(log: Path) -> list[dict[str, Any]]:
    """Return the lines of JSON that are in the file."""
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def paths(log: Path) -> list[str]:
    return [entry["path"] for entry in entries(log)]


def counted(running: Service, status: int) -> int:
    """Return how many answers with that status were counted, whatever their route."""
    totals = {tuple(json.loads(key)): value for key, value in running.get("/totals").json.items()}
    return sum(
        value for key, value in totals.items() if key[0] == "requests" and key[3:] == (status,)
    )


def say(running: Service, said: bytes) -> bytes:
    """Send these bytes and return all that comes back."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as client:
        client.sendall(said)
        while data := client.recv(65_536):
            received += data
    return bytes(received)


def test_usr1_reopens_the_json_log(environ: dict[str, str], tmp_path: Path) -> None:
    """After a rotation new lines are in the new file, and none of them in the old one."""
    log, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    with hosting(TARGET, "--access-logfile", str(log), **environ) as running:
        assert running.get("/before").status == 200
        wait_until(lambda: "/before" in paths(log), "the line")
        log.rename(rotated)
        running.process.send_signal(signal.SIGUSR1)

        def is_reopened() -> bool:
            assert running.get("/asked").status == 200
            return "/asked" in paths(log)

        wait_until(is_reopened, "a line in the new file")
        for _ in range(20):
            assert running.get("/after").status == 200
        wait_until(lambda: paths(log).count("/after") == 20, "the lines")
    assert "/before" in paths(rotated)
    assert "/after" not in paths(rotated)
    assert "/before" not in paths(log)


def test_the_last_lines_are_written_at_the_end(environ: dict[str, str], tmp_path: Path) -> None:
    """Each answered request has a line, in the moment before the worker's end as well."""
    log = tmp_path / "access.log"
    with (
        hosting(TARGET, "--access-logfile", str(log), **environ) as running,
        ThreadPoolExecutor(20) as clients,
    ):
        holding = [clients.submit(running.get, "/hold") for _ in range(20)]
        wait_until(Path(environ["HELD"]).exists, "requests in progress")
        for _ in range(20):
            assert running.get("/quick").status == 200
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Handling signal: term" in running.log, "the stop")
        Path(environ["OPEN"]).touch()
        answered = [one.result().status for one in holding]
        assert running.process.wait(timeout=60) == 0
    assert answered == [200] * 20
    logged = Counter(paths(log))
    assert (logged["/quick"], logged["/hold"]) == (20, 20)


@pytest.mark.parametrize("path", ["/raise", "/raise-in-the-body"])
def test_an_application_that_raises_is_logged_once(
    environ: dict[str, str], tmp_path: Path, path: str
) -> None:
    """One line and one count with the status that the client got: 500."""
    log = tmp_path / "access.log"
    with hosting(TARGET, "--access-logfile", str(log), **environ) as running:
        assert running.get(path).status == 500
        assert counted(running, 500) == 1
        assert running.get("/last").status == 200
        wait_until(lambda: "/last" in paths(log), "the last line")
    logged = [entry for entry in entries(log) if entry["status"] == 500 or entry["path"] == path]
    assert [(entry["path"], entry["method"], entry["status"]) for entry in logged] == [
        (path, "GET", 500)
    ]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n", 400),
        (b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n", 413),
        (
            b"POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"b\r\nhello world\r\n0\r\n\r\n",
            413,
        ),
    ],
    ids=["malformed line", "malformed header", "length too large", "chunks too large"],
)
def test_a_refusal_without_the_application_is_logged(
    environ: dict[str, str], tmp_path: Path, said: bytes, status: int
) -> None:
    """One line and one count with the status that the client got."""
    log = tmp_path / "access.log"
    arguments = ("--access-logfile", str(log))
    settings = {**environ, "GREENLINE_MAX_BODY_BYTES": "10"}
    with hosting(TARGET, *arguments, **settings) as running:
        assert say(running, said).startswith(b"HTTP/1.1 %d " % status)
        assert counted(running, status) == 1
        assert running.get("/last").status == 200
        wait_until(lambda: "/last" in paths(log), "the last line")
    assert [entry["status"] for entry in entries(log)].count(status) == 1


LOGCONFIG = """
import logging

class Quiet(logging.Filter):
    def filter(self, record):
        return "/hidden" not in record.getMessage()

logconfig_dict = {{
    "version": 1,
    "disable_existing_loggers": False,
    "root": {{"level": "INFO", "handlers": []}},
    "filters": {{"quiet": {{"()": Quiet}}}},
    "formatters": {{"ours": {{"format": "ours %(message)s"}}}},
    "handlers": {{
        "rotating": {{
            "class": "logging.handlers.RotatingFileHandler",
            "filename": {path!r},
            "maxBytes": 2000,
            "backupCount": 100,
            "filters": ["quiet"],
            "formatter": "ours",
        }},
    }},
    "loggers": {{
        "gunicorn.access": {{"level": "INFO", "handlers": ["rotating"], "propagate": False}},
    }},
}}
"""


def test_the_handlers_of_a_logconfig_keep_their_meaning(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """A filter filters, a format formats, and a file rotates at its size: no line is missing."""
    log = tmp_path / "access.log"
    with configured(tmp_path, LOGCONFIG.format(path=str(log)), environ) as running:
        for _ in range(50):
            assert running.get("/shown").status == 200
            assert running.get("/hidden").status == 200
    files = list(tmp_path.glob("access.log*"))
    assert len(files) > 2
    assert all(file.stat().st_size <= 2000 for file in files)
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert all(line.startswith("ours ") for line in lines)
    assert len([line for line in lines if "/shown" in line]) == 50
    assert not any("/hidden" in line for line in lines)


@contextmanager
def udp() -> Iterator[tuple[socket.socket, int]]:
    """Open a socket that datagrams come to."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(20)
        yield sock, sock.getsockname()[1]


def datagrams_up_to(sock: socket.socket, last: bytes) -> list[bytes]:
    """Return what comes, up to the first with *last* in it."""
    received: list[bytes] = []
    while not received or last not in received[-1]:
        received.append(sock.recv(65_536))
    return received


@pytest.mark.parametrize("lines", ["json", "gunicorn"])
def test_statsd_gets_its_metrics(environ: dict[str, str], tmp_path: Path, lines: str) -> None:
    """Of each answer, next to the lines of JSON as next to gunicorn's."""
    log = tmp_path / "access.log"
    with udp() as (metrics, port):
        arguments = ("--statsd-host", f"127.0.0.1:{port}", "--access-logfile", str(log))
        settings = {**environ, "GREENLINE_ACCESS_LOG": lines}
        with hosting(TARGET, *arguments, **settings) as running:
            datagrams_up_to(metrics, b"gunicorn.request.status.200")  # hosting's own probe
            assert running.get("/measured").status == 200
            received = datagrams_up_to(metrics, b"gunicorn.request.status.200")
            assert any(b"gunicorn.requests:1|c" in one for one in received)
            assert any(b"gunicorn.request.duration:" in one for one in received)
            gauge = datagrams_up_to(metrics, b"greenline.limiter.limit:")[-1]
            assert re.fullmatch(rb"greenline\.limiter\.limit:[1-9]\d*\|g", gauge)
            wait_until(lambda: "/measured" in log.read_text(), "the line")
    text = log.read_text()
    assert text.count("/measured ") == 1
    assert all(line.startswith("{") == (lines == "json") for line in text.splitlines())


def test_syslog_gets_gunicorns_access_log(environ: dict[str, str]) -> None:
    """What gunicorn sends to syslog goes there, and not to standard output."""
    with udp() as (syslog, port):
        arguments = ("--log-syslog", "--log-syslog-to", f"udp://127.0.0.1:{port}")
        settings = {**environ, "GREENLINE_ACCESS_LOG": "gunicorn"}
        with hosting(TARGET, *arguments, **settings) as running:
            assert running.get("/logged").status == 200
            received = datagrams_up_to(syslog, b"/logged")
            assert b".access: " in received[-1]
            assert "/logged" not in running.log
