"""
Clients that upload without listening: they send all of it, and read the answer then.

One that listens while it sends would not notice what a refusal before the body's end may do: where
a server closes with something unread, what is sent meets a reset, and the answer is lost with it.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import gevent

Address = tuple[str, int] | str

PIECE = b"x" * 65_536
CONTINUE = b"HTTP/1.1 100 "
PATIENCE_S = 1.0  # for 100 Continue, as curl has it
CLOSED = "closed, as it was said"
NOT_KEPT = "closed, against what was said"


@dataclass(frozen=True)
class Kind:
    """How a body is framed, and whether the client asks before it sends it."""

    is_chunked: bool
    asks: bool


KINDS = [Kind(is_chunked, asks) for is_chunked in (False, True) for asks in (False, True)]


@dataclass(frozen=True)
class Outcome:
    """
    What a client saw: *status*, and how its connection failed.

    *then* is what became of its next request: the status, or the end of the connection.
    """

    status: int | None = None
    failure: str | None = None
    then: int | str | None = None


def upload(
    address: Address, path: str, kind: Kind, *, pieces: int = 160, pause_s: float = 0.005,
    headers: Sequence[str] = (),
) -> Outcome:  # fmt: skip
    """Send *pieces* of 64 KiB, each with a pause after it, then read; then ask once more."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as sock:
        sock.settimeout(60)
        status = None
        try:
            sock.connect(address)
            sock.sendall(_head(path, pieces, kind, headers))
            heard = _heard_before(sock) if kind.asks else b""
            is_sent = not heard or heard.startswith(CONTINUE)
            if is_sent:
                heard = heard.partition(b"\r\n\r\n")[2]
                _send(sock, pieces, kind, pause_s)
            status, is_kept = _read_answer(sock, heard)
            if not is_sent:  # no server waits for a body that is not wanted
                return Outcome(status, then=NOT_KEPT if is_kept else CLOSED)
            return Outcome(status, then=_ask_again(sock, is_kept=is_kept))
        except OSError as error:
            return Outcome(status, repr(error))


def _head(path: str, pieces: int, kind: Kind, headers: Sequence[str]) -> bytes:
    length = f"Content-Length: {pieces * len(PIECE)}"
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    lines.append("Transfer-Encoding: chunked" if kind.is_chunked else length)
    if kind.asks:
        lines.append("Expect: 100-continue")
    return "\r\n".join([*lines, "", ""]).encode()


def _heard_before(sock: socket.socket) -> bytes:
    """Return what comes before the body is sent, nothing when nothing does."""
    sock.settimeout(PATIENCE_S)
    try:
        return sock.recv(65_536)
    except TimeoutError:
        return b""
    finally:
        sock.settimeout(60)


def _send(sock: socket.socket, pieces: int, kind: Kind, pause_s: float) -> None:
    for _ in range(pieces):
        sock.sendall(b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if kind.is_chunked else PIECE)
        gevent.sleep(pause_s)
    if kind.is_chunked:
        sock.sendall(b"0\r\n\r\n")


def _ask_again(sock: socket.socket, *, is_kept: bool) -> int | str:
    """Return the status of what follows on the connection; a reset is an OSError."""
    if is_kept:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    data = sock.recv(65_536)
    if not data:
        return NOT_KEPT if is_kept else CLOSED
    return _read_answer(sock, data)[0]


def _read_answer(sock: socket.socket, data: bytes) -> tuple[int, bool]:
    """Read an answer that begins with *data*; return its status and whether the next may follow."""
    # On a busy machine the 100 may come when its client no longer waits for it.
    body = data
    head = CONTINUE
    while head.startswith(CONTINUE):
        while b"\r\n\r\n" not in body:
            body += _more(sock)
        head, _, body = body.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    while len(body) < int(headers["content-length"]):
        body += _more(sock)
    return int(first.split()[1]), headers.get("connection") != "close"


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(65_536)
    if not data:
        raise OSError("closed before the end of the answer")
    return data
