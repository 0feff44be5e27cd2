"""
What a worker holds at rest, and what an idle keep-alive connection costs it.

1. All servers run at the same time: memory is their PSS, of all processes of a server, in which a
   page of a library that n processes have counts as 1/n.
2. A worker is at rest when it has started, answered while it became ready, and is quiet.
3. Each of the connections has had one answer and stays open, which is looked at before the memory
   is read again. The servers' keep-alive timeouts, and their limits of connections, are raised.
"""

import http.client
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from bench import cores, promises
from bench.http_lineup import GRANIAN_WSGI, RIVAL, STOCK, THREADS, Peer, lineup
from bench.http_report import Http
from bench.proc import MB
from bench.report import OURS
from bench.servers import (
    Granian,
    Gunicorn,
    Server,
    ServerError,
    Uvicorn,
    allow_files,
    wait_until_quiet,
)

CONNECTIONS = 10_000
OTHER_FILES = 500  # of the bench and of a server
WARM = 500  # requests
KEPT_S = 600
MAX_IDLE, MAX_REST = 1.0, 1.3
AT_REST, IDLE = (OURS, STOCK), (OURS, RIVAL, GRANIAN_WSGI, THREADS)
KEPT: dict[type[Server], tuple[str, ...]] = {
    Gunicorn: ("--keep-alive", str(KEPT_S)),
    Uvicorn: ("--timeout-keep-alive", str(KEPT_S)),
    # Its limit of connections is that of those that wait to be accepted.
    Granian: (
        "--backlog", "16384", "--backpressure", "16384",
        "--http1-header-read-timeout", "60000",  # the longest that it takes
    ),
}  # fmt: skip


def measure(found: Http, folder: Path, connections: int = CONNECTIONS) -> list[promises.Verdict]:
    """
    Start the servers, measure their memory, and judge ours.

    :param folder: where their logs are.
    :param connections: idle ones, int. Default CONNECTIONS.
    :raises ServerError: not so many files may be open, or a server closed a connection.
    """
    allow_files(connections + OTHER_FILES)
    servers_cores, others_cores = cores.divided()
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        with cores.on(servers_cores):
            for peer in peers():
                servers[peer.who] = stack.enter_context(peer.server(folder))
        rest = {who: servers[who].pss_bytes() for who in AT_REST}
        with cores.on(others_cores):
            idle = {who: idle_bytes(who, servers[who], connections) for who in IDLE}
    return judge(found, rest, idle, connections)


def peers() -> Iterator[Peer]:
    """Yield the servers, which keep idle connections for longer than this takes."""
    for peer in lineup():
        if peer.who in {*AT_REST, *IDLE}:
            yield replace(peer, arguments=(*peer.arguments, *KEPT[peer.kind]))


def judge(
    found: Http, rest: dict[str, int], idle: dict[str, float], connections: int
) -> list[promises.Verdict]:
    """Judge the memory of ours; the figures of all become a note."""
    verdicts = [
        promises.at_most(
            f"bytes for each of {connections:,} idle connections, over {RIVAL}",
            idle[OURS] / idle[RIVAL],
            MAX_IDLE,
        ),
        promises.at_most(
            f"memory of a worker at rest, over {STOCK}", rest[OURS] / rest[STOCK], MAX_REST
        ),
    ]
    found.notes.append("\n".join(f"- {text}" for text in texts(rest, idle, connections)))
    return verdicts


def texts(rest: dict[str, int], idle: dict[str, float], connections: int) -> Sequence[str]:
    """Return a sentence for each figure."""
    bytes_each = ", ".join(f"{who} {each:,.0f}" for who, each in idle.items())
    mb_each = ", ".join(f"{who} {each / MB:.1f}" for who, each in rest.items())
    return [
        f"bytes for each of {connections:,} idle connections: {bytes_each}",
        f"MB of a worker at rest, with its arbiter: {mb_each}",
    ]


def idle_bytes(who: str, server: Server, connections: int) -> float:
    """Return the bytes that one of so many idle *connections* costs *server*."""
    print(f"{connections:,} idle connections to {who}", file=sys.stderr, flush=True)
    assert server.process is not None
    with kept(server, 1) as (only,):
        for _ in range(WARM):
            ask(only)
    wait_until_quiet(server.process.pid)
    before = server.pss_bytes()
    with kept(server, connections) as all_kept:
        wait_until_quiet(server.process.pid)
        after = server.pss_bytes()
        if closed := count_closed(all_kept):
            raise ServerError(f"{who} closed {closed} of {connections} idle connections")
    return (after - before) / connections


@contextmanager
def kept(server: Server, connections: int) -> Iterator[list[http.client.HTTPConnection]]:
    """Hold *connections* to *server*, each of which had one answer, for the length of the block."""
    with ExitStack() as stack:
        found = []
        for _ in range(connections):
            one = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            stack.enter_context(closing(one))
            ask(one)
            found.append(one)
        yield found


def ask(connection: http.client.HTTPConnection) -> None:
    """Ask for the small JSON object."""
    connection.request("GET", "/")
    answer = connection.getresponse()
    if answer.status != 200:
        raise ServerError(f"answers {answer.status}")
    answer.read()


def count_closed(connections: Sequence[http.client.HTTPConnection]) -> int:
    """Return how many of idle *connections* the server has closed."""
    poll = select.poll()
    sockets = [each.sock for each in connections if each.sock is not None]
    for each in sockets:
        poll.register(each, select.POLLIN)
    # An idle connection has nothing to read but its end.
    return len(connections) - len(sockets) + len(poll.poll(0))
