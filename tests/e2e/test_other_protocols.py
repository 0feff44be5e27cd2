"""Requests over HTTP/2 and uwsgi have the limit, the queue, the handlers and the deadline."""

import importlib
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from greenline.http.gunicorn_compat import VERSION
from tests.e2e.hosting import NO_CONFIG, WORKER
from tests.helpers import uwsgi
from tests.helpers.certificate import certify, needs_openssl
from tests.helpers.support import Service, service, wait_until

APP = "tests.e2e.overdue:app"
TIMEOUT_S, SLACK_S = 1.0, 1.0
ONE = {"REQUEST_TIMEOUT": f"{TIMEOUT_S:g}", "GREENLINE_MAX_IN_PROGRESS": "1"}


class Http2:
    """Asks over HTTP/2, each time on a connection of its own."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        self._port = port
        self._trust = trust
        trust.set_alpn_protocols(["h2"])

    @contextmanager
    def begun(self, path: str) -> Iterator[tuple[ssl.SSLSocket, Any]]:
        """Send a request; give the socket and the connection."""
        connection: Any = importlib.import_module("h2.connection").H2Connection()
        with (
            socket.create_connection(("127.0.0.1", self._port), timeout=20) as plain,
            self._trust.wrap_socket(plain) as sock,
        ):
            assert sock.selected_alpn_protocol() == "h2"
            connection.initiate_connection()
            head = {":method": "GET", ":path": path, ":scheme": "https", ":authority": "x"}
            connection.send_headers(1, list(head.items()), end_stream=True)
            sock.sendall(connection.data_to_send())
            yield sock, connection

    def __call__(self, path: str) -> tuple[int, bytes]:
        """Return status and body; the status is 0 where the stream was reset."""
        status, body = 0, b""
        with self.begun(path) as (sock, connection):
            while data := sock.recv(65_536):
                for event in connection.receive_data(data):
                    kind = type(event).__name__
                    if kind == "ResponseReceived":
                        status = int(dict(event.headers)[b":status"])
                    elif kind == "DataReceived":
                        body += event.data
                    elif kind in ("StreamReset", "StreamEnded"):
                        return status if kind == "StreamEnded" else 0, body
        return 0, body


class Uwsgi:
    """Asks in uwsgi's protocol, each time on a connection of its own."""

    def __init__(self, port: int) -> None:
        self._port = port

    @contextmanager
    def begun(self, path: str) -> Iterator[socket.socket]:
        """Send a request; give the socket."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=20) as sock:
            sock.sendall(uwsgi.packet(REQUEST_METHOD="GET", PATH_INFO=path, QUERY_STRING=""))
            yield sock

    def __call__(self, path: str) -> tuple[int, bytes]:
        """Return status and body."""
        with self.begun(path) as sock:
            answer = b"".join(iter(lambda: sock.recv(65_536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body


@pytest.fixture(scope="module", params=[pytest.param("http2", marks=needs_openssl), "uwsgi"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Http2 | Uwsgi]]:
    """A worker that works on one request at once, and how to ask it."""
    trust = None
    if ((27, 0) if request.param == "http2" else (24, 0)) > VERSION:
        pytest.skip("the worker serves it with a newer gunicorn")
    if request.param == "http2":
        pytest.importorskip("h2")
        tls, trust = certify(tmp_path_factory.mktemp("tls"))
        arguments = (*tls, "--http-protocols", "h2,h1")
    else:
        arguments = ("--protocol", "uwsgi")
    with service(
        ONE, *WORKER, *arguments, "--access-logfile", "-",
        target=APP, config=NO_CONFIG, wait=False,
    ) as running:  # fmt: skip
        wait_until(lambda: "Booting worker" in running.log, "the worker to boot")
        port = running.port
        yield running, Uwsgi(port) if trust is None else Http2(port, trust)


def test_an_ordinary_request_is_answered(served: tuple[Service, Http2 | Uwsgi]) -> None:
    """It has one line in the access log."""
    running, ask = served
    assert ask("/ordinary") == (200, b"")
    wait_until(lambda: running.log.count("GET /ordinary") == 1, "the line of the access log")


def test_an_error_of_the_application_is_a_500(served: tuple[Service, Http2 | Uwsgi]) -> None:
    """It is in the log, once."""
    running, ask = served
    assert ask("/broken")[0] == 500
    wait_until(lambda: running.log.count("KeyError: 'broken'") == 1, "the error in the log")


def test_its_wait_fails_at_the_deadline(served: tuple[Service, Http2 | Uwsgi]) -> None:
    """It is a 504, and the log has the line at which it waited."""
    running, ask = served
    started = time.monotonic()
    assert ask("/take_lock") == (504, b"no answer within 1 s")
    assert TIMEOUT_S <= time.monotonic() - started < TIMEOUT_S + SLACK_S
    wait_until(lambda: "in take_lock\n" in running.log, "the stack in the log")


def test_an_answer_that_has_begun_is_cut(served: tuple[Service, Http2 | Uwsgi]) -> None:
    """Over HTTP/2 its stream is reset; uwsgi has no length, and its connection is closed."""
    running, ask = served
    status, body = ask("/stalled_stream")
    assert body == b"begun"
    assert status == (0 if isinstance(ask, Http2) else 200)
    wait_until(lambda: "GET /stalled_stream: not answered within 1 s" in running.log, "the line")


def test_a_busy_stream_lets_others_run(served: tuple[Service, Http2 | Uwsgi]) -> None:
    """One whose parts come without a wait."""
    _, ask = served
    with ask.begun("/busy_stream"):
        done = wait_until(lambda: b"busy_stream" in (body := ask("/healthz")[1]) and body, "it")
    assert b"busy_stream_end" not in done


def test_it_waits_in_the_queue(served: tuple[Service, Http2 | Uwsgi]) -> None:
    """While another one has the only place; there its deadline passes, too."""
    running, ask = served
    with ask.begun("/long_stream"):
        wait_until(lambda: b"long_stream" in ask("/healthz")[1], "the other one to be admitted")
        assert ask("/sleep") == (504, b"no answer within 1 s")
    wait_until(lambda: "GET /sleep: no answer within 1 s; it waited" in running.log, "the line")
