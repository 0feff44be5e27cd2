"""A connection that an application takes over, as for a WebSocket, outlives REQUEST_TIMEOUT."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.hosting import NO_CONFIG, WORKER, hosting
from tests.helpers.certificate import certify, needs_openssl
from tests.helpers.support import HANG_S, Service, service, wait_until

APP = "tests.e2e.upgrading:app"
TIMEOUT_S, SLACK_S = 1.0, 1.0
UPGRADE = (
    "GET {} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with hosting(APP, REQUEST_TIMEOUT=f"{TIMEOUT_S:g}") as one:
        yield one


@pytest.fixture
def client(running: Service) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        yield sock


def upgrade(client: socket.socket, path: str) -> bytes:
    client.sendall(UPGRADE.format(path).encode())
    return client.recv(65_536)


def talk(client: socket.socket, path: str) -> None:
    """Take the connection over, and use it when the time of a request is over."""
    answer = upgrade(client, path)
    assert answer.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer
    time.sleep(1.5 * TIMEOUT_S)
    client.sendall(b"hello")
    assert client.recv(65_536) == b"hello"


@pytest.mark.parametrize("path", ["/raw", "/started"], ids=["over the socket", "start_response"])
def test_a_connection_that_was_taken_over_has_no_deadline(
    running: Service, client: socket.socket, path: str
) -> None:
    """It answers long after the time of a request, and nothing is logged."""
    talk(client, path)
    assert "not answered within" not in running.log


@needs_openssl
def test_nor_has_one_with_tls(tmp_path: Path) -> None:
    """Its socket is of another class."""
    tls, trust = certify(tmp_path)
    with service(
        {"REQUEST_TIMEOUT": f"{TIMEOUT_S:g}"}, *WORKER, *tls,
        target=APP, config=NO_CONFIG, wait=False,
    ) as running:  # fmt: skip
        wait_until(lambda: "Booting worker" in running.log, "the worker to boot")
        with (
            # The worker may boot for long yet.
            socket.create_connection(("127.0.0.1", running.port), timeout=HANG_S) as sock,
            trust.wrap_socket(sock) as client,
        ):
            talk(client, "/raw")
        assert "not answered within" not in running.log


def test_an_upgrade_that_is_not_answered_is_a_504(client: socket.socket) -> None:
    """The application has not taken the socket yet."""
    started = time.monotonic()
    assert upgrade(client, "/stuck").startswith(b"HTTP/1.1 504 Gateway Timeout\r\n")
    assert TIMEOUT_S <= time.monotonic() - started < TIMEOUT_S + SLACK_S


def test_an_ordinary_answer_to_an_upgrade_has_its_deadline(client: socket.socket) -> None:
    """It was sent by the worker, not by the application."""
    answer = upgrade(client, "/slow_answer")
    while data := client.recv(65_536):
        answer += data
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\no")


def test_a_connection_stays_that_was_not_taken_over(client: socket.socket) -> None:
    """The next request on it is served as ever."""
    for _ in range(2):
        assert upgrade(client, "/").endswith(b"\r\n\r\nok")
