"""
Two hosts behind nginx, each once in the upstream, as the comment in deploy/nginx.conf has them.

1. One that stops fails no request. One that is killed fails the POSTs that it was working on: nginx
   asks the other one for all the rest, at once, since a port without a listener refuses.
2. It is asked again within fail_timeout after it is back. gunicorn listens before its worker has
   loaded the application: a request that comes meanwhile waits, and is no slower for the stop.
3. One that is deaf refuses none: a request waits there for proxy_read_timeout, until three of an
   nginx process have failed.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest

from tests.deploy.behind import Behind, behind
from tests.deploy.traffic import ADD, IS_LONG, Deployed, Traffic, failed
from tests.helpers.forms import in_the_long_form
from tests.helpers.support import Databases, Service, free_port, service, wait_until

FAIL_TIMEOUT_S, SLACK_S = 5.0, 3.0
CLIENTS = 20
ROUNDS = 5 if IS_LONG else 1
# On a busy machine an application takes longer to load than nginx waits for an answer.
PATIENT = {"proxy_read_timeout 35s;": "proxy_read_timeout 100s;"}
# Each a tenth of what it is.
LOWERED = {
    "proxy_read_timeout 35s;": "proxy_read_timeout 3500ms;",
    "proxy_next_upstream_timeout 10s;": "proxy_next_upstream_timeout 1s;",
}


@dataclass
class Host:
    """A gunicorn on a *port* of its own, which can be started again there."""

    databases: Databases
    port: int
    stack: ExitStack
    running: Service

    @property
    def name(self) -> str:
        """What nginx calls it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, once more, and return when it is ready."""
        self.running = self.stack.enter_context(served(self.databases, self.port))

    def processes(self) -> list[int]:
        """Return the arbiter and its workers."""
        return [self.running.process.pid, *self.running.workers()]

    def signal(self, number: signal.Signals) -> None:
        """Send it to all of them, as a machine that fails would."""
        for pid in self.processes():
            os.kill(pid, number)


@contextmanager
def served(databases: Databases, port: int) -> Iterator[Service]:
    with service(
        {**databases.environ, "WEB_CONCURRENCY": "1"}, "--bind", f"127.0.0.1:{port}"
    ) as running:
        yield running


@pytest.fixture
def hosts(databases: Databases) -> Iterator[tuple[Host, Host]]:
    """Two of them."""
    with ExitStack() as stack:
        ports = [free_port(), free_port()]
        first, second = (
            Host(databases, port, stack, stack.enter_context(served(databases, port)))
            for port in ports
        )
        yield first, second


def asked(front: Behind, host: Host, after: int) -> bool:
    """Return whether one of nginx's requests after so many was answered by *host*."""
    return any(
        entry["upstream"].endswith(host.name) and entry["status"] < 300
        for entry in front.entries()[after:]
    )


def lost_s(front: Behind) -> float:
    """Return the longest time that a request lost at a host which did not answer it."""
    longest_s = max(
        sum(map(float, entry["upstream_seconds"].split(", ")[:-1])) for entry in front.entries()
    )
    assert longest_s < SLACK_S
    return longest_s


def back_after_s(front: Behind, host: Host) -> float:
    """Start *host* again, and return how long it then waits for its first request."""
    host.start()
    started, before = monotonic(), len(front.entries())
    wait_until(lambda: asked(front, host, before), "a request")
    return monotonic() - started


def traffic_to(front: Behind, host: Host, databases: Databases) -> Traffic:
    """Return clients who ask through *front*."""
    return Traffic(Deployed(host.running, front, Path(), Path()), databases, clients=CLIENTS)


def assert_added_once(traffic: Traffic, lost: set[int]) -> None:
    """A client that got 201 has a task; no client has two."""
    rows = traffic.added()
    assert set(rows.values()) <= {1}
    assert set(traffic.adds.answered) - lost == set(rows) - lost


def test_one_that_stops_fails_no_request(hosts: tuple[Host, Host], databases: Databases) -> None:
    """SIGTERM: every request is answered by one of the two; and back."""
    first, second = hosts
    with behind(ports=[first.port, second.port], changes=PATIENT) as front:
        with traffic_to(front, second, databases) as traffic:
            for _ in range(ROUNDS):
                wait_until(lambda: asked(front, first, 0) and asked(front, second, 0), "both")
                assert first.running.stop() == 0
                traffic.await_some()
                waited_s = back_after_s(front, first)
                assert waited_s < FAIL_TIMEOUT_S + SLACK_S
                traffic.await_some()
            traffic.stop()
            assert failed(traffic.reads, 200) == set()
            assert failed(traffic.adds, 201) == set()
            assert_added_once(traffic, set())
            print(
                f"{ROUNDS} stops: {traffic.count} requests, none failed; they lost at most "
                f"{lost_s(front):.1f} s; back {waited_s:.1f} s"
            )


@in_the_long_form
def test_one_that_is_killed_fails_what_it_was_working_on(
    hosts: tuple[Host, Host], databases: Databases
) -> None:
    """SIGKILL: GETs are asked of the other one, POSTs get 502 and are not sent twice."""
    first, second = hosts
    lost_before = 0
    with behind(ports=[first.port, second.port], changes=PATIENT) as front:
        with traffic_to(front, second, databases) as traffic:
            for _ in range(ROUNDS):
                wait_until(lambda: asked(front, first, 0) and asked(front, second, 0), "both")
                first.signal(signal.SIGKILL)
                first.running.process.wait()
                traffic.await_some()
                lost = len(failed(traffic.adds, 201))
                assert lost - lost_before <= CLIENTS / 2
                waited_s = back_after_s(front, first)
                assert waited_s < FAIL_TIMEOUT_S + SLACK_S
                traffic.await_some()
                assert len(failed(traffic.adds, 201)) == lost, "only the kill fails any"
                lost_before = lost
            traffic.stop()
            assert failed(traffic.reads, 200) == set()
            posts = failed(traffic.adds, 201)
            assert {traffic.adds.answered[number] for number in posts} <= {502}
            assert traffic.asked_by_nginx()[ADD, 502, "502"] == len(posts)
            assert_added_once(traffic, posts)
            print(
                f"{ROUNDS} kills: {traffic.count} requests, {len(posts)} POSTs failed, no GET; "
                f"they lost at most {lost_s(front):.1f} s; back {waited_s:.1f} s"
            )


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 waits for a deaf host")
def test_one_that_is_deaf_costs_its_requests_the_read_timeout(
    hosts: tuple[Host, Host], databases: Databases
) -> None:
    """SIGSTOP: what is asked there is a 504, a GET too; once three failed it is left alone."""
    first, second = hosts
    with behind(ports=[first.port, second.port], changes=LOWERED) as front:
        with traffic_to(front, second, databases) as traffic:
            wait_until(lambda: asked(front, first, 0) and asked(front, second, 0), "both")
            first.signal(signal.SIGSTOP)
            try:
                wait_until(lambda: "temporarily disabled" in front.errors, "nginx to see it")
                traffic.await_some(500)
            finally:
                first.signal(signal.SIGCONT)
            traffic.stop()
            lost = failed(traffic.reads, 200), failed(traffic.adds, 201)
            assert set(traffic.reads.statuses) <= {200, 504}
            assert set(traffic.adds.statuses) <= {201, 504}
            assert 0 < sum(map(len, lost)) <= CLIENTS
            gets, posts = map(len, lost)
            print(f"deaf: {traffic.count} requests; {gets} GETs and {posts} POSTs were a 504")
