"""
A server that says it has transactions, before one that has none: it passes on what they do.

What is sent in a transaction is passed on without saying so, and remembered; a commit or an abort
is answered here. It undoes nothing: it shows what is asked of a server, not what one does with it.
"""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from struct import Struct
from typing import Any

import bson
import gevent

HEADER = Struct("<iiii")  # length, request, answered request, operation
OP_MSG = 2013
OURS = ("lsid", "txnNumber", "startTransaction", "autocommit", "$clusterTime")


class Transacting:
    """``port`` is where it listens; ``sent`` are the commands of transactions, in order."""

    def __init__(self, target: int) -> None:
        self.sent: list[tuple[int, str]] = []
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = gevent.spawn(self._accept)

    def close(self) -> None:
        self._accepting.kill()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            gevent.spawn(self._serve, self._listener.accept()[0])

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._target))
        with closing(client), closing(server), suppress(OSError, EOFError):
            while True:
                self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        number, operation, body = _receive(client)
        if operation != OP_MSG:
            server.sendall(HEADER.pack(16 + len(body), number, 0, operation) + body)
            _, operation, answer = _receive(server)
            client.sendall(HEADER.pack(16 + len(answer), 1, number, operation) + answer)
            return
        size = int.from_bytes(body[5:9], "little")
        command = bson.decode(body[5 : 5 + size])
        name = next(iter(command))
        if "autocommit" in command:
            self.sent.append((command["txnNumber"], name))
        if name in ("commitTransaction", "abortTransaction"):
            _answer(client, number, {"ok": 1.0})
            return
        plain = bson.encode({key: value for key, value in command.items() if key not in OURS})
        passed = bytes(4) + b"\0" + plain + body[5 + size :]
        server.sendall(HEADER.pack(16 + len(passed), number, 0, OP_MSG) + passed)
        _, _, answer = _receive(server)
        told = bson.decode(answer[5:])
        if name in ("hello", "ismaster"):
            me = f"127.0.0.1:{self.port}"
            told |= {"setName": "rs", "hosts": [me], "me": me, "primary": me, "setVersion": 1}
        _answer(client, number, told)


@contextmanager
def transacting(target: int) -> Iterator[Transacting]:
    """Stand before the server on the port *target*."""
    between = Transacting(target)
    try:
        yield between
    finally:
        between.close()


def _answer(client: socket.socket, number: int, document: dict[str, Any]) -> None:
    body = bytes(5) + bson.encode(document)
    client.sendall(HEADER.pack(16 + len(body), 1, number, OP_MSG) + body)


def _receive(connection: socket.socket) -> tuple[int, int, bytes]:
    length, number, _, operation = HEADER.unpack(_exactly(connection, HEADER.size))
    return number, operation, _exactly(connection, length - HEADER.size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
