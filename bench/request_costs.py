"""
Where the microseconds of one request go in the worker: ``python -m bench.request_costs``.

1. Each part is called by itself in this process, again and again; the least of all rounds counts.
2. The whole is the processor time of this process while another one asks over ten connections: no
   part of it is the client's. The rest is the loop, and what the parts do to each other's caches.
"""
# ruff: noqa: E402

from greenline.patch import patch_all

patch_all()

import socket
import sys
from collections.abc import Callable
from subprocess import PIPE, Popen
from time import perf_counter, process_time
from typing import Any

from gunicorn.config import Config
from gunicorn.glogging import Logger

from bench.flask_request import application
from greenline.flask import Flask
from greenline.http.h1c_compat import split_head
from greenline.http.plain_client import PlainClient
from greenline.hub.cooperate import yield_to_hub
from greenline.worker.listener import Clients, Name
from greenline.worker.worker import GreenWorker

ROUNDS, TIMES, CONNECTIONS, ASKED = 25, 200, 10, 4_000
YIELD = "a yield to the hub: between pipelined requests, and between parts of a body"
PEER, SERVER = ("127.0.0.1", 40_000), ("127.0.0.1", 8000)
ASK = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
CLIENT = f"""
import select, socket, sys
socks = [socket.socket(fileno=int(fd)) for fd in sys.argv[1:]]
while asked := sys.stdin.readline():
    for sock in socks:
        sock.send({ASK!r})
    to_read = int(asked)
    while to_read:
        for sock in select.select(socks, [], [])[0]:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
            to_read -= 1
            if to_read >= len(socks):
                sock.send({ASK!r})
    print(flush=True)
"""


class Parts:
    """What a request passes in *worker*, each by itself."""

    def __init__(self, worker: GreenWorker) -> None:
        self._worker = worker
        socks, self._peers = _connected(TIMES)
        self._clients = [PlainClient(sock, worker.limits, worker.sweep) for sock in socks]
        self._sent: list[bytes] = []
        self._connection: Any = worker._connect(socks[0], PEER, SERVER, on_end=lambda _: None)
        self._connection.sendall = self._sent.append
        self._request = self._connection._fast_parser.read(ASK)
        self._body = list(worker.wsgi(self._request.environ, self._start))
        self._respond()

    def measure(self) -> dict[str, float]:
        """Return the microseconds of each part, in a request's order."""
        worker, parser = self._worker, self._connection._fast_parser
        environs = iter([parser.read(ASK).environ for _ in range(TIMES)])
        readers, writers = iter(self._clients), iter(self._clients)
        for peer in self._peers:
            peer.send(ASK)
        found = {
            "yield until something came, and read it": _each(lambda: next(readers).recv_request(5)),
            "parse": _each(lambda: split_head(ASK)),
            "environ": _each(lambda: parser.read(ASK)),
            "limiter, counts, log": _each(self._account),
            "Flask": _each(lambda: b"".join(worker.wsgi(next(environs), self._start))),
            "response": _each(self._respond),
            "write": _each(lambda: next(writers).sendall(self._sent[0])),
            YIELD: _each(yield_to_hub),
        }
        for peer in self._peers:
            peer.recv(65_536)
        return found

    def _start(self, *head: Any) -> None:
        self._head = head

    def _account(self) -> None:
        request, worker = self._request, self._worker
        admitted = worker._limiter.acquire(request.environ, self._clients[0].sock)
        worker._request_log.record(request.environ, request, self._response, 0.001)
        worker._limiter.release(admitted)

    def _respond(self) -> None:
        self._response, _ = self._connection.respond(self._request)
        self._response.start_response(*self._head)
        self._response.write_all(self._body)


def _connected(count: int) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return the two ends of *count* connections over loopback."""
    with socket.create_server(("127.0.0.1", 0), backlog=count) as listener:
        peers = [socket.create_connection(listener.getsockname()) for _ in range(count)]
        return [listener.accept()[0] for _ in range(count)], peers


def _each(call: Callable[[], object]) -> float:
    """Return the microseconds of one call."""
    started = perf_counter()
    for _ in range(TIMES):
        call()
    return (perf_counter() - started) / TIMES * 1e6


def main() -> None:
    GreenWorker.setup()
    cfg = Config()
    worker = GreenWorker(1, 1, [], None, 30, cfg, Logger(cfg))
    worker.wsgi = application(Flask)
    worker.prepare()
    parts = Parts(worker)
    socks, peers = _connected(CONNECTIONS)
    clients = Clients(CONNECTIONS)
    for sock in socks:
        worker.begin(Name(SERVER), clients, sock, PEER)
    fds = [peer.fileno() for peer in peers]
    command = [sys.executable, "-c", CLIENT, *map(str, fds)]
    rounds = []
    with Popen(command, bufsize=0, stdin=PIPE, stdout=PIPE, pass_fds=fds) as client:
        for _ in range(ROUNDS):
            found, started = parts.measure(), process_time()
            client.stdin.write(b"%d\n" % ASKED)
            client.stdout.readline()
            rounds.append({**found, "the whole": (process_time() - started) / ASKED * 1e6})
    shortest = {name: min(each[name] for each in rounds) for name in rounds[0]}
    shortest["environ"] -= shortest["parse"]  # which is a part of it
    yielded, whole = shortest.pop(YIELD), shortest.pop("the whole")
    shortest["sum"] = total = sum(shortest.values())
    shortest |= {"the rest": whole - total, "the whole": whole, YIELD: yielded}
    for name, each in shortest.items():
        print(f"{name:68} {each:6.1f} us")


if __name__ == "__main__":
    main()
