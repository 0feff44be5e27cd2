"""
Clients that ask over kept connections, and count what becomes of each request.

1. A connection is given up when the server says ``Connection: close``, and a new one is made, for
   each request where none is to be kept; one that is refused is no request.
2. A request is sent once. Any end but a whole answer is a failure, with its reason.
3. Every request has a number, so that both sides can be compared; it is sent in the query, unless
   the path has one of its own, and is given to *body*.
4. A client pauses after an answer, with its connection idle, where a duration is given.
"""

import itertools
import socket
from collections import Counter
from collections.abc import Callable

import gevent
from gevent.event import Event

Address = tuple[str, int] | str


class Load:
    """
    *clients* greenlets that ask ``GET path?number`` at *addresses*, in turn.

    With *body* they ``POST`` what it returns for the number, which is JSON. *headers* are lines
    with their ends.
    """

    def __init__(
        self, *addresses: Address, clients: int = 50, path: str = "/count", keep: bool = True,
        body: Callable[[int], bytes] | None = None, pause_s: Callable[[], float] | None = None,
        headers: str = "",
    ) -> None:  # fmt: skip
        self._addresses = itertools.cycle(addresses)
        self._path = path
        self._body = body
        self._pause_s = pause_s
        self._headers = f"{headers}Connection: {'keep-alive' if keep else 'close'}\r\n"
        self._numbers = itertools.count()
        self._stop = Event()
        self.answered: dict[int, int] = {}
        self.failures: dict[int, str] = {}
        self.errors: dict[int, str] = {}  # the bodies of answers with an error's status
        self.refused = 0
        self._clients: list[gevent.Greenlet[..., None]] = []
        self.start(clients)

    @property
    def statuses(self) -> Counter[int]:
        """How many answers there were of each status."""
        return Counter(self.answered.values())

    def start(self, clients: int) -> None:
        """Add *clients*."""
        self._clients += [gevent.spawn(self._serve) for _ in range(clients)]

    def stop(self) -> None:
        """Let each client finish its request."""
        self._stop.set()
        gevent.joinall(self._clients, timeout=60, raise_error=True)

    def _serve(self) -> None:
        while not self._stop.is_set():
            address = next(self._addresses)
            family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
            with socket.socket(family) as sock:
                sock.settimeout(60)
                try:
                    sock.connect(address)
                except OSError:
                    self.refused += 1
                    gevent.sleep(0.01)
                    continue
                self._ask_until_closed(sock)

    def _ask_until_closed(self, sock: socket.socket) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            try:
                sock.sendall(self._request(number))
                status, is_kept, text = _read_answer(sock)
            except OSError as error:
                self.failures[number] = repr(error)
                return
            self.answered[number] = status
            if status >= 400:
                self.errors[number] = text
            if not is_kept:
                return
            if self._pause_s is not None:
                self._stop.wait(self._pause_s())

    def _request(self, number: int) -> bytes:
        target = self._path if "?" in self._path else f"{self._path}?{number}"
        body = b"" if self._body is None else self._body(number)
        head = f"{'GET' if self._body is None else 'POST'} {target} HTTP/1.1\r\nHost: x\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}{self._headers}\r\n".encode() + body


def _read_answer(sock: socket.socket) -> tuple[int, bool, str]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65_536)
        if not more:
            raise OSError(f"closed after {len(data)} bytes of the answer")
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    left = int(headers["content-length"]) - len(body)
    while left > 0:
        more = sock.recv(left)
        if not more:
            raise OSError(f"closed {left} bytes before the end of the answer")
        body += more
        left -= len(more)
    status = int(first.split()[1])
    is_kept = headers.get("connection", "").lower() != "close"
    return status, is_kept, body.decode(errors="replace")
