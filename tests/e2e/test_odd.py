"""What goes wrong in an application or a client stays with its own request, over real sockets."""

import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.hosting import hosting
from tests.helpers.support import Service, wait_until

TARGET = "tests.e2e.odd:app"
POST = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"
ONE = {"GREENLINE_MAX_IN_PROGRESS": "1", "GREENLINE_MAX_WAITING": "0"}


def heard(client: socket.socket) -> bytes:
    """Return all that comes until the end; a reset is an error."""
    answer = bytearray()
    while data := client.recv(65_536):
        answer += data
    return bytes(answer)


def test_the_last_answer_is_whole_when_another_request_came_meanwhile() -> None:
    """A body that is not read any more is no reason to reset a connection with an answer on it."""
    with (
        hosting(TARGET) as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=20) as client,
    ):
        client.sendall(b"GET /slow-and-large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(0.1)  # so that it comes by itself
        client.sendall(GET % b"/second")
        time.sleep(1)  # a client that is slow to read
        head, _, body = heard(client).partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    assert len(body) == 200_000


@pytest.mark.parametrize("path", [b"/too-short", b"/short-file", b"/short-parts"])
def test_after_too_few_bytes_the_connection_ends(path: bytes) -> None:
    """Else the next answer would pass for the rest of this one."""
    with (
        hosting(TARGET) as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=20) as client,
    ):
        client.sendall(GET % path + GET % b"/second")
        answer = heard(client)
        assert answer.endswith(b"\r\n\r\nfive!"), answer
        wait_until(lambda: "Content-Length" in running.log, "a line in the log")


@pytest.mark.skipif(sys.platform != "linux", reason="there is no file that cannot be read")
def test_a_file_that_cannot_be_read_is_in_the_error_log() -> None:
    """It is the application's error, and no client that has left."""
    with (
        hosting(TARGET) as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=20) as client,
    ):
        client.sendall(GET % b"/unreadable-file")
        assert heard(client).endswith(b"\r\n\r\n")
        wait_until(lambda: "UnreadableFile: " in running.log, "the error in the log")
        assert "Input/output error" in running.log


def test_a_body_that_is_found_too_large_after_the_answer_gets_no_second_one() -> None:
    """The application did not read it; the client has its answer, and the connection ends."""
    body = b"1f4\r\n" + b"a" * 500 + b"\r\n1f5\r\n" + b"b" * 501 + b"\r\n0\r\n\r\n"
    with (
        hosting(TARGET, GREENLINE_MAX_BODY_BYTES="1000") as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=20) as client,
    ):
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        client.shutdown(socket.SHUT_WR)
        answer = heard(client)
    assert answer.count(b"HTTP/1.1") == 1, answer


def test_a_request_that_cannot_be_cut_is_named() -> None:
    """Its handler swallows what ends it; the worker ends all the same, and says whom it left."""
    with hosting(TARGET, "--graceful-timeout", "4", **ONE) as running:
        begin(running, b"/stubborn")
        wait_until(lambda: running.get("/").status == 503, "it to have the only place")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=30) == 0
        assert "GET /stubborn" in running.log


def begin(running: Service, path: bytes) -> None:
    """Ask in the background."""

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", running.port), timeout=20) as client:
            client.sendall(GET % path)
            heard(client)

    threading.Thread(target=ask, daemon=True).start()


@contextmanager
def full(running: Service, go: Path) -> Iterator[None]:
    """Have a request in progress, which has the only place, until the block ends."""
    begin(running, b"/held?" + bytes(go))
    wait_until(lambda: running.get("/").status == 503, "the only place to be taken")
    try:
        yield
    finally:
        go.touch()


def test_a_refused_head_request_causes_no_warning(tmp_path: Path) -> None:
    """The answer has no body, so nothing is dropped from it."""
    with hosting(TARGET, **ONE) as running, full(running, tmp_path / "go"):
        assert running.ask("HEAD", "/").status == 503
        assert running.ask("GET", "/healthz").status == 200  # then all is said
        assert "dropping" not in running.log


def test_gunicorns_own_log_tells_of_what_was_refused() -> None:
    """Who came, what was asked and the status, also where the application never ran."""
    with hosting(TARGET, "--access-logfile", "-", GREENLINE_MAX_BODY_BYTES="10") as running:
        assert running.ask("POST", "/large", b"x" * 11).status == 413
        assert running.ask("POST", "/large", b"x" * 11, {"Expect": "100-continue"}).status == 413
        line = "127.0.0.1 - - [", '"POST /large HTTP/1.1" 413 32'
        wait_until(
            lambda: sum(all(part in one for part in line) for one in running.log.splitlines()) == 2,
            "both lines",
        )


def test_a_greenlet_that_reads_on_after_the_answer_keeps_no_connection() -> None:
    """Two waits for one socket would replace each other, and the worker's would never end."""
    limits = {"GREENLINE_BODY_READ_TIMEOUT": "1", "GREENLINE_HEAD_TIMEOUT": "1"}
    with hosting(TARGET, "--worker-connections", "3", "--keep-alive", "1", **limits) as running:
        for _ in range(4):
            with socket.create_connection(("127.0.0.1", running.port), timeout=10) as client:
                client.sendall(POST % b"/reads-on")
                assert heard(client).startswith(b"HTTP/1.1 200 ")
        assert running.get("/").body == b"ok"


def test_a_client_that_is_read_from_meanwhile_is_still_written_to_within_the_limit() -> None:
    """One greenlet reads the body while another sends: each has its own limit."""
    with (
        hosting(TARGET, GREENLINE_WRITE_TIMEOUT="1") as running,
        socket.create_connection(("127.0.0.1", running.port), timeout=10) as client,
    ):
        client.sendall(POST % b"/reads-and-writes")
        time.sleep(0.3)  # both wait now
        client.sendall(b"x")
        time.sleep(3)
        with pytest.raises(ConnectionResetError):
            heard(client)


def test_a_refused_client_is_not_asked_for_its_body(tmp_path: Path) -> None:
    """An upload that waits for 100 Continue gets 503 instead, and the connection ends."""
    said = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    with (
        hosting(TARGET, **ONE) as running,
        full(running, tmp_path / "go"),
        socket.create_connection(("127.0.0.1", running.port), timeout=20) as client,
    ):
        client.sendall(said)
        answer = heard(client)
    assert answer.startswith(b"HTTP/1.1 503 "), answer
    assert b"Connection: close" in answer
