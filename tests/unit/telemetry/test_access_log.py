"""The access log and its writer: whole lines, nothing waits, lost lines are counted."""

import fcntl
import logging
import os
import select
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import flask
import msgspec
import pytest
from gevent.monkey import get_original
from werkzeug.test import EnvironBuilder

from greenline.telemetry.access_log import AccessLog, LineHandler, lost, route
from greenline.telemetry.log_writer import LineWriter, open_log
from tests.helpers.support import CHECKOUT, environ, wait_until

BOOK = {
    "REQUEST_METHOD": "GET",
    "PATH_INFO": "/books/1",
    "QUERY_STRING": "token=secret",
    "REMOTE_ADDR": "10.0.0.9",
    "greenline.request_id": "r1",
    "greenline.route": "/books/<int:id>",
    "greenline.spent": {"queued": 0.0012, "pool": 0.0021, "postgres": 0.0345, "connecting": 1.0},
}


# gevent's waits for the hub, which does not run while the test reads.
close = get_original("os", "close")
FILLING = b"x" * (select.PIPE_BUF - 1)


class Pipe:
    """A pipe whose read end is read when the test says so."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def drain(self, until: bytes) -> list[bytes]:
        """Return the lines that come, up to the one with *until* in it."""
        data = b""
        while not (data.endswith(b"\n") and until in data):
            data += os.read(self.reader, 65_536)
        return data.splitlines()

    def read(self, size: int = 65_536, pause_s: float = 0.0) -> bytes:
        """Return what comes until the other end is closed, *size* bytes and a pause at a time."""
        data = b""
        while chunk := os.read(self.reader, size):
            data += chunk
            sleep(pause_s)
        return data

    def fill(self) -> None:
        """Write lines of filling until there is no room for another one."""
        os.set_blocking(self.writer, False)
        with suppress(BlockingIOError):
            while True:
                os.write(self.writer, FILLING + b"\n")
        os.set_blocking(self.writer, True)

    def waiting(self) -> int:
        """Return how many bytes are not read yet."""
        return int.from_bytes(fcntl.ioctl(self.reader, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe; its write end belongs to the writer."""
    pipe = Pipe()
    yield pipe
    close(pipe.reader)


def logged(pipe: Pipe, more: dict[str, Any], status: int = 200) -> Any:
    """Return the entry of one request."""
    writer = LineWriter(pipe.writer, lost)
    environ = {**BOOK, **more}
    AccessLog(writer).log(environ, route(environ), status, 512, 0.25)
    assert writer.close(10)
    (line,) = pipe.read().splitlines()
    assert len(line) < select.PIPE_BUF
    return msgspec.json.decode(line)


def test_tells_what_was_asked_what_was_answered_and_where_the_time_went(pipe: Pipe) -> None:
    """Every field, with its unit in its name; the query is not there."""
    entry = logged(pipe, {}, 503)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "gunicorn.access",
        "message": "GET /books/1 503",
        "request_id": "r1",
        "route": "/books/<int:id>",
        "worker": os.getpid(),
        "client": "10.0.0.9",
        "method": "GET",
        "path": "/books/1",
        "status": 503,
        "bytes": 512,
        "proxy_ms": None,
        "queued_ms": 1.2,
        "pool_ms": 2.1,
        "postgres_ms": 34.5,
        "mongodb_ms": 0.0,
        "total_ms": 250.0,
    }


def test_a_request_of_a_trace_has_its_id(pipe: Pipe) -> None:
    """There is no such field without a valid header."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    header = f"00-{trace}-00f067aa0ba902b7-01"
    assert logged(pipe, {"HTTP_TRACEPARENT": header})["trace_id"] == trace


@pytest.mark.parametrize("more", [{}, {"HTTP_TRACEPARENT": "00-nonsense"}], ids=["none", "invalid"])
def test_a_request_without_a_trace_has_no_id_of_one(pipe: Pipe, more: dict[str, str]) -> None:
    """Not null, which would cost each line a field."""
    assert "trace_id" not in logged(pipe, more)


@pytest.mark.parametrize(
    "path",
    ["/" + "x" * 60_000, "/" + "\x01" * 5000, "/\xff\xfe", "/caf\xc3\xa9", '/"\n\\'],
    ids=["long", "control characters", "not utf-8", "utf-8", "quotes and newlines"],
)
def test_whatever_the_path_is_the_line_is_one_short_line(pipe: Pipe, path: str) -> None:
    """A path cannot forge a line, nor make one that a pipe would tear."""
    entry = logged(pipe, {"PATH_INFO": path, "greenline.request_id": "\x02" * 200})
    assert entry["path"] == path.encode("latin-1").decode("utf-8", "replace")[: len(entry["path"])]
    assert len(entry["path"]) >= min(len(path) - 1, 100)


def test_an_unmodified_flask_tells_its_route() -> None:
    """The rule is read from the request that Werkzeug leaves in the environ."""
    app = flask.Flask(__name__)
    seen = []
    app.add_url_rule("/books/<int:book_id>", view_func=lambda book_id: "", endpoint="book")
    for path in ("/books/1", "/nothing"):
        environ = EnvironBuilder(path).get_environ()
        app(environ, lambda *_: seen.append(route(environ)))  # type: ignore[arg-type] # noqa: B023
    assert seen == ["/books/<int:book_id>", "-"]


def test_a_stuck_pipe_blocks_no_writer_and_lost_lines_are_counted_in_their_place(
    pipe: Pipe,
) -> None:
    """Memory is bounded; read again, the log goes on behind a line with the number lost."""
    # It is stuck from the beginning: else there would be room again among the lost lines, where
    # the writer is slow.
    pipe.fill()
    writer = LineWriter(pipe.writer, lost, max_bytes=100_000)
    started = monotonic()
    for n in range(20_000):
        writer.write(b'{"n":%d}\n' % n)
    assert monotonic() - started < 5
    stats = writer.stats()
    assert stats["lost"] > 0
    assert stats["waiting_bytes"] <= 100_000
    kept = 20_000 - stats["lost"]
    before = pipe.drain(b'{"n":%d}' % (kept - 1))
    assert [line for line in before if line != FILLING] == [b'{"n":%d}' % n for n in range(kept)]
    wait_until(lambda: writer.stats()["waiting_bytes"] == 0, "the writer to be done")
    writer.write(b"later\n")
    missing, later = pipe.drain(b"later")
    assert msgspec.json.decode(missing)["lost"] == 20_000 - kept
    assert later == b"later"
    writer.write(b"and so on\n")
    assert writer.close(10)
    writer.write(b"too late\n")
    assert pipe.read() == b"and so on\n"
    assert writer.stats()["lost"] == 20_000 - kept + 1


SERVER = """
import resource, socket, sys
from greenline.patch import patch_all
patch_all()
from gevent.pywsgi import WSGIServer
from greenline.telemetry.access_log import AccessLog, lost
from greenline.telemetry.log_writer import LineWriter, open_log

writer = LineWriter(open_log("-"), lost, max_bytes=200_000)
log = AccessLog(writer)

def application(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    log.log(environ, "-", 200, 2, 0.001)
    if environ["PATH_INFO"] == "/stats":
        print(writer.stats(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
    return [b"ok"]

listener = socket.create_server(("127.0.0.1", 0))
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
server = WSGIServer(listener, application, log=None)
server.start()
print(server.server_port, file=sys.stderr, flush=True)
server.serve_forever()
"""


def ask(client: socket.socket, path: bytes, count: int = 1) -> None:
    """Send *count* requests in one go, and read as many answers."""
    client.sendall(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % path * count)
    data = b""
    while data.count(b"200 OK") < count or not data.endswith(b"ok"):
        chunk = client.recv(65_536)
        assert chunk, data[-200:]
        data += chunk


def test_a_server_whose_output_is_not_read_answers_ten_thousand_requests() -> None:
    """All are answered, memory stays where it was, and the log tells what it lost."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=CHECKOUT,
        env=environ({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stderr is not None
    try:
        port = int(server.stderr.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            ask(client, b"/" + b"x" * 500, 100)
            ask(client, b"/stats")
            memory_kib = int(server.stderr.readline().split()[-1])
            for _ in range(100):
                ask(client, b"/" + b"x" * 500, 100)
            ask(client, b"/stats")
            said = server.stderr.readline()
            assert int(said.split()[-1]) - memory_kib < 10_000
            assert "'lost': 0" not in said
            lost_lines = 0
            while lost_lines < 5000:
                ask(client, b"/again")
                lost_lines += msgspec.json.decode(server.stdout.readline()).get("lost", 0)
    finally:
        server.kill()
        server.communicate()


def test_lines_of_several_processes_on_one_pipe_stay_whole(pipe: Pipe) -> None:
    """Three writers, a reader that lets the pipe run full: every line is one that was written."""
    script = (
        "import sys\n"
        "from greenline.telemetry.access_log import lost\n"
        "from greenline.telemetry.log_writer import LineWriter, open_log\n"
        "writer = LineWriter(open_log('-'), lost)\n"
        "for n in range(3000): writer.write(sys.argv[1].encode() * 300 + b'\\n')\n"
        "writer.close(60)\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, letter],
            cwd=CHECKOUT,
            env=environ({}),
            stdout=pipe.writer,
        )
        for letter in "abc"
    ]
    close(pipe.writer)
    wait_until(lambda: pipe.waiting() > 60_000, "the pipe to be full")
    lines = pipe.read(5000, 0.001).splitlines()
    assert [writer.wait(30) for writer in writers] == [0, 0, 0]
    assert sorted(lines) == [letter * 300 for letter in (b"a", b"b", b"c") for _ in range(3000)]


def test_a_pipe_that_somebody_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    """The writer waits until there is room again."""
    os.set_blocking(pipe.writer, False)
    writer = LineWriter(pipe.writer, lost)
    for _ in range(1000):
        writer.write(b"x" * 499 + b"\n")
    read = pipe.drain(b"x")
    assert not writer.close(0.0)
    read += pipe.read().splitlines()
    assert b"".join(read) == b"x" * 499_000
    assert writer.stats() == {"written": 1000, "lost": 0, "waiting_bytes": 0}


def test_closing_writes_what_waits_but_not_for_longer_than_it_may(pipe: Pipe) -> None:
    """With a stuck pipe it gives up in time; what still fits is written."""
    writer = LineWriter(pipe.writer, lost)
    for _ in range(1000):
        writer.write(b"x" * 499 + b"\n")
    started = monotonic()
    assert not writer.close(0.5)
    assert 0.5 <= monotonic() - started < 1.5
    assert len(pipe.read()) == 500_000
    wait_until(lambda: writer.close(0.0), "the writer to end")


def test_a_process_ends_though_its_output_is_stuck(pipe: Pipe) -> None:
    """The thread that waits for the pipe does not keep the worker alive."""
    script = (
        "from greenline.telemetry.access_log import lost\n"
        "from greenline.telemetry.log_writer import LineWriter, open_log\n"
        "writer = LineWriter(open_log('-'), lost)\n"
        "for n in range(1000): writer.write(b'x' * 499 + b'\\n')\n"
        "assert not writer.close(0.2)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=CHECKOUT, env=environ({}), stdout=pipe.writer, timeout=30)
    close(pipe.writer)
    assert done.returncode == 0


def test_what_is_not_read_any_more_is_counted_as_lost() -> None:
    """A reader that went away is no error of the hub's."""
    pipe = Pipe()
    close(pipe.reader)
    writer = LineWriter(pipe.writer, lost)
    for _ in range(10):
        writer.write(b"x\n")
    wait_until(lambda: writer.stats()["lost"] == 10, "the lines to be lost")
    assert writer.close(10)


def test_goes_on_in_a_new_file_when_the_old_one_was_moved_away(tmp_path: Path) -> None:
    """Rotated, the log has each line in one of the two files."""
    path = tmp_path / "access.log"
    writer = LineWriter(open_log(str(path)), lost)
    writer.write(b"one\n")
    wait_until(lambda: writer.stats()["written"] == 1, "the first line")
    path.rename(tmp_path / "access.log.1")
    writer.reopen(str(path))
    writer.write(b"two\n")
    assert writer.close(10)
    assert (tmp_path / "access.log.1").read_text() == "one\n"
    assert path.read_text() == "two\n"
    assert repr(writer) == "<LineWriter written=2 lost=0 waiting_bytes=0>"


def test_a_logger_keeps_its_format(pipe: Pipe) -> None:
    """gunicorn's own access log goes the same way, as gunicorn formats it."""
    writer = LineWriter(pipe.writer, lost)
    handler = LineHandler(writer)
    handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
    logger = logging.Logger("gunicorn.access")
    logger.addHandler(handler)
    logger.info("%s \u20ac", "10.0.0.9")
    assert writer.close(10)
    assert pipe.read().decode() == "[INFO] 10.0.0.9 \u20ac\n"


def test_a_line_waits_for_no_lock(pipe: Pipe) -> None:
    """Another thread holds the handler's own; a filter of the handler decides as ever."""
    writer = LineWriter(pipe.writer, lost)
    handler = LineHandler(writer)
    handler.addFilter(lambda record: record.levelno > logging.DEBUG)
    logger = logging.Logger("gunicorn.access")
    logger.addHandler(handler)
    with ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as logs:
        other.submit(handler.acquire).result()
        try:
            logs.submit(logger.info, "one").result(30)
            logs.submit(logger.debug, "two").result(30)
        finally:
            other.submit(handler.release).result()
    assert writer.close(10)
    assert pipe.read() == b"one\n"
