"""
Answer scrapers and browsers, on TCP or a unix socket, each client in a thread of its own.

``/metrics`` is for Prometheus, ``/`` a page that ``/events`` keeps up to date, and ``/state`` what
it shows. A client that does not read, or does not ask, is disconnected after ``CLIENT_S``; of more
than ``MAX_CLIENTS`` at once, the others are disconnected at once; ``MAX_FOLLOWERS`` of them may
follow the events.
"""

import hmac
import logging
import os
import re
import socket
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore, Timer
from time import monotonic, sleep
from typing import Any

import msgspec
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from greenline.ops.watch import EVERY_S, Watch
from greenline.settings import Bind

log = logging.getLogger(__name__)

CLIENT_S = 10.0
MAX_CLIENTS, MAX_FOLLOWERS = 32, 16
NONE: Mapping[str, str] = {}
EVENTS_S = 3600.0  # then a browser asks again
HTML, JSON = "text/html; charset=utf-8", "application/json"
PAGE = Path(__file__).with_name("page.html").read_bytes()
# The page has one script and one style sheet in itself, and loads nothing.
POLICY = "default-src 'none'; connect-src 'self'; img-src data:; " + "; ".join(
    f"{kind}-src 'sha256-{b64encode(sha256(found).digest()).decode()}'"
    for kind in ("script", "style")
    for found in re.findall(rb"<%b>(.*?)</%b>" % (kind.encode(), kind.encode()), PAGE, re.DOTALL)
)


class Handler(BaseHTTPRequestHandler):
    """Answer the requests of one client."""

    protocol_version = "HTTP/1.1"
    timeout = CLIENT_S
    server: "Server"

    def setup(self) -> None:
        """Begin the time that a client has: one that sends a byte now and then is slow, too."""
        super().setup()
        self._limit = Timer(CLIENT_S, self._cut)
        self._limit.daemon = True
        self._limit.start()

    def finish(self) -> None:
        """End the client's time."""
        self._limit.cancel()
        with suppress(OSError):
            super().finish()

    def _cut(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """Answer with the metrics, the page, or the state."""
        path = self.path.partition("?")[0]
        answer = {
            "/": self._send_page,
            "/metrics": self._send_metrics,
            "/state": self._send_state,
            "/events": self._send_events,
        }.get(path)
        if not self._is_allowed():
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", b"a token is needed\n")
        elif answer is None:
            text = b"look at / with a browser, at /metrics, or at /state\n"
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", text)
        else:
            answer()

    do_HEAD = do_GET  # noqa: N815

    def _is_allowed(self) -> bool:
        token = self.server.token
        if token is None:
            return True
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        kind = kind.capitalize()
        if kind == "Basic":  # a browser asks for a name and a password
            with suppress(ValueError):
                given = b64decode(given).decode("utf-8", "replace").partition(":")[2]
        return kind in ("Basic", "Bearer") and hmac.compare_digest(given.encode(), token.encode())

    def _send_metrics(self) -> None:
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        self._answer(HTTPStatus.OK, content_type, encode(self.server.registry))

    def _send_page(self) -> None:
        self._answer(HTTPStatus.OK, HTML, PAGE, {"Content-Security-Policy": POLICY})

    def _send_state(self) -> None:
        self._answer(HTTPStatus.OK, JSON, msgspec.json.encode(self.server.watch.state()))

    def _send_events(self) -> None:
        """Send the state each second, as server-sent events."""
        if not self.server.followers.acquire(blocking=False):
            text = b"too many pages are open\n"
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", text)
            return
        try:
            self._follow()
        finally:
            self.server.followers.release()

    def _follow(self) -> None:
        self._limit.cancel()
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        until = monotonic() + EVENTS_S
        while self.command != "HEAD" and monotonic() < until:
            self.wfile.write(b"data: " + msgspec.json.encode(self.server.watch.state()) + b"\n\n")
            sleep(EVERY_S)

    def _answer(
        self, status: HTTPStatus, content_type: str, body: bytes, more: Mapping[str, str] = NONE
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("WWW-Authenticate", 'Basic realm="the token is the password"')
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: scrapes are regular."""

    def address_string(self) -> str:
        """Return the client's address; a unix socket has none."""
        return str(self.client_address[0]) if self.client_address else ""


class Server(ThreadingMixIn, TCPServer):
    """
    Listen for scrapers.

    :param bind: where.
    :param registry: the metrics.
    :param watch: computes the state of the workers.
    :param token: what a scraper has to send, str; None: nothing.
    :raises OSError: the address is taken, or cannot be bound.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, bind: Bind, registry: CollectorRegistry, watch: Watch, token: str | None = None
    ) -> None:
        self.registry = registry
        self.watch = watch
        self.token = token
        self._free = BoundedSemaphore(MAX_CLIENTS)
        # The others are for scrapers: a page that is left open must not keep them out.
        self.followers = BoundedSemaphore(MAX_FOLLOWERS)
        self.address_family = _family(bind)
        self._path = bind.path
        if bind.path:
            _remove_stale(bind.path)
        super().__init__(bind.path or (bind.host, bind.port), Handler)  # type: ignore[arg-type]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or disconnect: there are too many clients."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of ours; a client that has gone, or has not read its answer, is none."""
        if not isinstance(sys.exception(), OSError):
            log.exception("the page or /metrics failed")

    def server_close(self) -> None:
        """Stop to listen; remove the unix socket."""
        # What is not bound has no name: it is closed because another process listens at the path.
        if self._path and self.socket.getsockname() == self._path:
            # In this order: after USR2 that process may listen here as soon as nothing does.
            Path(self._path).unlink(missing_ok=True)
        super().server_close()


def _family(bind: Bind) -> socket.AddressFamily:
    if bind.path:
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in bind.host else socket.AF_INET


def _remove_stale(path: str) -> None:
    """Remove the socket of a process that has ended; that of another one stays."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:  # it is not there, or no socket: bind() says so
            return
