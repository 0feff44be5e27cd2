"""A WSGI application that takes the client's socket over, as libraries for WebSockets do."""

import base64
import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Socket:
    """What simple-websocket does: a thread reads, and the view waits for an event."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._came = threading.Event()
        self._lines: list[bytes] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while data := self._sock.recv(4096):
            self._lines.append(data)
            self._came.set()
        self._lines.append(b"")
        self._came.set()

    def receive(self) -> bytes:
        while not self._lines:
            self._came.wait()
            self._came.clear()
        return self._lines.pop(0)


def accept(environ: dict[str, Any]) -> str:
    digest = hashlib.sha1(  # noqa: S324  (RFC 6455, section 4.2.2)
        (environ["HTTP_SEC_WEBSOCKET_KEY"] + GUID).encode()
    )
    return base64.b64encode(digest.digest()).decode()


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Send back what comes, or do what the path names."""
    path = environ["PATH_INFO"]
    sock = environ["gunicorn.socket"]
    if path == "/stuck":
        time.sleep(20)
    if path == "/raw":
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        sock.sendall(f"{head}Sec-WebSocket-Accept: {accept(environ)}\r\n\r\n".encode())
        other = Socket(sock)
        while line := other.receive():
            sock.send(line)
        raise StopIteration
    if path == "/started":
        headers = [("Upgrade", "websocket"), ("Sec-WebSocket-Accept", accept(environ))]
        write = start_response("101 Switching Protocols", headers)
        write(b"")
        while line := sock.recv(4096):
            sock.sendall(line)
        return []
    start_response("200 OK", [("Content-Length", "2")])
    if path == "/slow_answer":
        return slow_answer()
    return [b"ok"]


def slow_answer() -> Iterable[bytes]:
    """Answer an upgrade as if it were none; stall in the middle."""
    yield b"o"
    time.sleep(20)
    yield b"k"
