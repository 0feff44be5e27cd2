"""
Stand between the service and a server, and misbehave on request.

1. It runs in the tests' process, apart from the service, on greenlets of its own.
2. Its port stays the same, and stays taken while it refuses.
3. What it does holds for the connections that exist as well as for new ones.
4. What it held back while deaf goes on its way afterwards, as after a stall of the network; a
   connection that heard garbage is reset when it ends.
"""

import hashlib
import select
import socket
import struct
from collections.abc import Callable
from contextlib import closing, suppress

import gevent
from gevent.event import Event

from greenline.hub import poll

# Neither Postgres, nor MongoDB, nor HTTP says such a thing. The same bytes in every run.
GARBAGE = hashlib.shake_256(b"garbage").digest(200)
RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close() sends a reset

Target = tuple[str, int] | str
Reply = Callable[[bytes], bytes]


class Proxy:
    """
    A TCP proxy on a free port of 127.0.0.1 for *target*: host and port, or a unix socket's path.

    ``accepted`` counts the connections so far, ``asks`` the pieces of data from clients (with
    one small question at a time, that is the questions), ``held`` the
    connections that ``hold`` stopped, ``open`` all connections now, ``most`` the most so far.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.accepted = 0
        self.asks = 0
        self.held = 0
        self.most = 0
        self._open: set[socket.socket] = set()
        self._holding: tuple[bytes, ...] = ()
        self._losing: bytes | None = None
        self._replies: list[tuple[bytes, Reply]] = []
        self._lost: set[socket.socket] = set()
        self._garbage = False
        self._ending = Event()
        self._ending.set()
        self._released = Event()
        self._hearing = Event()
        self._hearing.set()
        self._speaking = Event()
        self._speaking.set()
        self._accepting: gevent.Greenlet[[], None] | None = None
        with _bound(0) as free:
            self.port = int(free.getsockname()[1])
            # Bound once, and by its number, else the kernel takes the port back when it does not
            # listen: connections are refused then, and no process can take the port.
            self._listener = _bound(self.port)

    @property
    def open(self) -> int:
        """The connections that clients have now."""
        return len(self._open)

    def pass_on(self) -> None:
        """Be a good proxy, as at the beginning."""
        if self._garbage:
            self.cut()
        self._garbage, self._holding, self._losing, self._replies = False, (), None, []
        self._hearing.set()
        self._speaking.set()
        self._ending.set()
        self._released.set()
        if self._accepting is None:
            self._listener.listen(1024)
            self._accepting = gevent.spawn(self._accept, self._listener)

    def refuse(self) -> None:
        """Be a server that is not there: refuse new connections, reset those that exist."""
        if self._accepting is not None:
            self._accepting.kill()
            self._accepting = None
            self._listener.shutdown(socket.SHUT_RD)  # Linux: it can listen again.
        self.cut()

    def cut(self) -> None:
        """Reset the connections that exist; new ones are welcome."""
        for client in list(self._open):
            _reset(client)
        self._open.clear()

    def deafen(self) -> None:
        """Accept and then neither forward nor answer, as a server that hangs."""
        self._hearing.clear()

    def mute(self) -> None:
        """Forward what clients say, and keep the answers."""
        self._speaking.clear()

    def keep_open(self) -> None:
        """Pass on what the server says, and not yet that it has closed a connection."""
        self._ending.clear()

    def hold(self, *words: bytes) -> None:
        """Stop hearing the connections on which a client says one of *words*, and only those."""
        self._holding = words
        self._released.clear()

    def lose(self, words: bytes) -> None:
        """Pass on the next thing that a client says with *words*, and reset it at the answer."""
        self._losing = words

    def reply(self, words: bytes, reply: Reply, times: int = 1) -> None:
        """Answer the next things that a client says with *words* in the server's place."""
        self._replies += [(words, reply)] * times

    def babble(self) -> None:
        """Answer random bytes to whatever is said."""
        self._garbage = True

    def __enter__(self) -> "Proxy":
        self.pass_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._hearing.set()
        self._speaking.set()
        self._ending.set()
        self._released.set()
        self.refuse()
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            self.accepted += 1
            self._open.add(client)
            self.most = max(self.most, sum(map(_is_open, self._open)))
            gevent.spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with closing(client), suppress(OSError):
            self._hearing.wait()
            with closing(_connected(self.target)) as server:
                answers = gevent.spawn(self._answer, server, client)
                try:
                    self._ask(client, server)
                finally:
                    answers.kill()
        self._open.discard(client)
        self._lost.discard(client)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(65_536):
            self.asks += 1
            if any(words in data for words in self._holding):
                self.held += 1
                self._released.wait()
                self.held -= 1
            self._hearing.wait()
            if self._losing is not None and self._losing in data:
                self._losing = None
                self._lost.add(client)
            if self._garbage:
                client.sendall(GARBAGE)
            elif self._replies and self._replies[0][0] in data:
                client.sendall(self._replies.pop(0)[1](data))
            else:
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65_536):
                self._hearing.wait()
                self._speaking.wait()
                if client in self._lost:
                    _reset(client)
                    return
                if not self._garbage:
                    client.sendall(data)
            self._ending.wait()
            client.shutdown(socket.SHUT_RDWR)


def _is_open(client: socket.socket) -> bool:
    # A client that has closed one did so before the next one connected. One that is reset is
    # forgotten a moment later.
    return client.fileno() >= 0 and not poll.has(client, select.POLLRDHUP)


def _reset(client: socket.socket) -> None:
    with suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _connected(target: Target) -> socket.socket:
    if isinstance(target, tuple):
        return socket.create_connection(target)
    server = socket.socket(socket.AF_UNIX)
    server.connect(target)
    return server
