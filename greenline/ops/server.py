"""
Answer ``/metrics``, on TCP or a unix socket, each client in a thread of its own.

A client that does not read, or does not ask, is disconnected after ``CLIENT_S``; of more than
``MAX_CLIENTS`` at once, the others are disconnected at once.
"""

import hmac
import os
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from greenline.settings import Bind

CLIENT_S = 10.0
MAX_CLIENTS = 32
PATH = "/metrics"


class Handler(BaseHTTPRequestHandler):
    """Answer the requests of one client."""

    protocol_version = "HTTP/1.1"
    timeout = CLIENT_S
    server: "Server"

    def do_GET(self) -> None:
        """Answer with the metrics, in the format that the client accepts."""
        if not self._is_allowed():
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", b"a token is needed\n")
        elif self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"look at {PATH}\n".encode())
        else:
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, content_type, encode(self.server.registry))

    do_HEAD = do_GET  # noqa: N815

    def _is_allowed(self) -> bool:
        token = self.server.token
        given = self.headers.get("Authorization", "")
        return token is None or hmac.compare_digest(given.encode(), f"Bearer {token}".encode())

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
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
    :param token: what a scraper has to send, str; None: nothing.
    :raises OSError: the address is taken, or cannot be bound.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, bind: Bind, registry: CollectorRegistry, token: str | None = None) -> None:
        self.registry = registry
        self.token = token
        self._free = BoundedSemaphore(MAX_CLIENTS)
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
        """Log nothing: the client has gone, or has not read its answer."""

    def server_close(self) -> None:
        """Stop to listen; remove the unix socket."""
        # In this order: after USR2 another process may listen here as soon as nothing does.
        if self._path:
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
