"""
Clients of a kilobyte a second, up and down, and those who are not slow.

1. Behind nginx they are nginx's: it has their uploads as a whole before the service is asked, and
   takes answers from it at once. The service has next to none of their connections.
2. Straight at the worker it has them all, as greenlets that wait, and answers the others.
3. A gunicorn with threads has as many of them as it has threads, and answers no other client.

``GREENLINE_LONG_TESTS=1`` has 250 uploads and 250 downloads at once, and compares the p99 of the
others with and without them; ``bench/slow_clients.py`` tells the figures.
"""

import http.client
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import gevent
import psycopg2
import pytest

from bench.trickle import Trickle
from tests.deploy.behind import Behind, behind
from tests.deploy.traffic import IS_LONG, Deployed, deployed
from tests.helpers.forms import in_the_long_form
from tests.helpers.load import Load
from tests.helpers.support import Databases, service, wait_until

EACH = 250 if IS_LONG else 60
SEEN_S = 2.0  # a client looks for its answer a second after its last byte
SMALL_BUFFERS = {"backlog=2048;": "backlog=2048 sndbuf=16k;"}
CONFIG = "bench/peers/gunicorn_small_buffers.py"
CLIENTS, PAUSE_S, SECONDS, ROUNDS = 4, 0.005, 5.0, 3
MOST = 1.5
ESTABLISHED, CONNECTED = "01", "03"


@dataclass
class Way:
    """How all come to the service: through *front*, or straight."""

    place: Deployed
    port: int
    front: Behind | None = None

    def connections(self) -> int:
        """Return how many connections the service has with clients, as the kernel tells."""
        port = f":{self.place.running.port:04X}"
        tcp = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        path = str(self.place.socket)
        return sum(row[1].endswith(port) and row[3] == ESTABLISHED for row in tcp) + sum(
            row[-1] == path and row[5] == CONNECTED for row in unix
        )


@pytest.fixture(scope="module")
def place(databases: Databases) -> Iterator[Deployed]:
    """The service, which listens on both kinds of socket."""
    with deployed("TCP", databases, config=CONFIG) as place:
        yield place


@pytest.fixture(params=["unix socket", "TCP", "straight"])
def way(request: pytest.FixtureRequest, place: Deployed) -> Iterator[Way]:
    """Two ways through an nginx, and one without."""
    with ExitStack() as stack:
        if request.param == "straight":
            yield Way(place, place.running.port)
            return
        if request.param == "TCP":
            front = behind(ports=[place.running.port], changes=SMALL_BUFFERS)
        else:
            front = behind(sockets=[place.socket], changes=SMALL_BUFFERS)
        entered = stack.enter_context(front)
        yield Way(place, entered.port, entered)


def slow_tasks(databases: Databases, *, delete: bool = False) -> int:
    """Return how many tasks of slow uploads there are."""
    with closing(psycopg2.connect(databases.postgres)) as conn, conn, conn.cursor() as cursor:
        do = "delete from" if delete else "select 1 from"
        cursor.execute(f"{do} tasks where title = 'slow'")
        return cursor.rowcount


def test_all_are_answered(way: Way, databases: Databases) -> None:
    """The slow ones and the others; behind nginx no slow one has a connection to the service."""
    slow_tasks(databases, delete=True)
    with Trickle(way.port, EACH, EACH) as slow:
        assert slow.is_ready()
        load = Load(("127.0.0.1", way.port), path="/books/1", clients=CLIENTS)
        try:
            if way.front is None:
                # All but a few uploads, whose clients take a second to see their answer.
                wait_until(lambda: way.connections() >= 1.5 * EACH, "them to be there")
            else:  # their downloads were taken at once: the connections idle, and go
                wait_until(lambda: way.connections() <= 2 * CLIENTS, "no slow client to be there")
            # Every second one has at most 5 kB.
            wait_until(lambda: slow_tasks(databases) > EACH / 2, "half of the uploads")
            gevent.sleep(SEEN_S)
        finally:
            load.stop()
        assert (load.failures, load.refused, set(load.statuses)) == ({}, 0, {200})
    reported = slow.statuses
    assert set(reported) == {"upload 201"}
    assert EACH / 2 <= reported["upload 201"] <= slow_tasks(databases)
    if way.front is not None:
        logged = [entry["status"] for entry in way.front.entries() if entry["method"] == "POST"]
        assert reported["upload 201"] <= logged.count(201) <= slow_tasks(databases)
        assert set(logged) <= {201, 400, 499}  # who hung up at the end


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 compares latencies")
def test_the_others_are_as_quick_as_without_them(way: Way) -> None:
    """Their p99 is at most half as much again, in the best of three rounds."""
    ratios = []
    for _ in range(ROUNDS):
        alone_ms = p99_ms(way.port)
        with Trickle(way.port, EACH, EACH) as slow:
            assert slow.is_ready()
            gevent.sleep(1)
            meanwhile_ms = p99_ms(way.port)
        assert not any("lost" in what for what in slow.statuses)
        ratios.append((round(meanwhile_ms / alone_ms, 2), alone_ms, meanwhile_ms))
    print(ratios)
    assert min(ratios)[0] <= MOST


def p99_ms(port: int) -> float:
    """Ask for SECONDS, from a few clients that pause; return what 99 of 100 do not exceed."""
    took_ms: list[float] = []
    end = time.monotonic() + SECONDS

    def ask() -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            while time.monotonic() < end:
                started = time.perf_counter()
                connection.request("GET", "/books/1")
                answer = connection.getresponse()
                answer.read()
                took_ms.append((time.perf_counter() - started) * 1000)
                assert answer.status == 200
                gevent.sleep(PAUSE_S)

    gevent.joinall([gevent.spawn(ask) for _ in range(CLIENTS)], raise_error=True)
    took_ms.sort()
    return round(took_ms[ceil(0.99 * len(took_ms)) - 1], 2)


@in_the_long_form
def test_threads_answer_no_other_client() -> None:
    """gunicorn's gthread worker with four threads and 20 slow uploads: a GET waits in vain."""
    with service(
        {}, "-k", "gthread", "-w", "1", "--threads", "4", target="bench.peers.reads_wsgi:app",
        config="tests/e2e/plain_conf.py",
    ) as running:  # fmt: skip
        with Trickle(running.port, 20, 0) as slow:
            assert slow.is_ready()
            with pytest.raises(TimeoutError):
                running.get("/", timeout_s=2)
