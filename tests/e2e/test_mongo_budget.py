"""The connections to MongoDB while workers are replaced: never more than the plan, none missing."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from embedded.mongo import Mongo
from greenline.budget.plan import MONGODB_EXTRA_A_WORKER, Deployment, mongodb_plan
from greenline.mongo.options import MIN_POOL_SIZE
from tests.helpers.connections import Connections
from tests.helpers.forms import in_the_long_form
from tests.helpers.load import Load
from tests.helpers.support import IS_LONG, Databases, Service, service, wait_until

WORKERS = 2
# Room for one generation, for the least of another, and for an exchange, but not for two.
MAX_CONNECTIONS = 63
PLAN = mongodb_plan(MAX_CONNECTIONS, Deployment(WORKERS, surge_hosts=0))
RELOADS, KILLS = (3, 3) if IS_LONG else (1, 1)
# A busy machine takes its time for a reload, and nothing here is about time.
LIMIT_S = 100.0
HEAD = (
    b"POST /states HTTP/1.1\r\nHost: x\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Mongo]:
    """A MongoDB without other connections."""
    with Mongo(folder / "budget", durable=False) as server:
        yield server


@pytest.fixture
def connections(server: Mongo) -> Iterator[Connections]:
    """What the server counts."""
    counting = Connections(server)
    yield counting
    counting.close()


@pytest.fixture
def running(server: Mongo, databases: Databases, connections: Connections) -> Iterator[Service]:
    """Two workers on it."""
    more = {
        **Databases(databases.postgres, server.url).environ,
        "MONGODB_MAX_CONNECTIONS": str(MAX_CONNECTIONS),
        "WEB_CONCURRENCY": str(WORKERS),
        "GREENLINE_SURGE_HOSTS": "0",
        "GREENLINE_BODY_READ_TIMEOUT": str(LIMIT_S),
        "REQUEST_TIMEOUT": str(LIMIT_S),
        "LOG_LEVEL": "debug",  # the sizes of the pools
    }
    limit = f"{LIMIT_S:.0f}"
    # The arbiter must not take a stopped worker for one that hangs.
    with service(more, "--graceful-timeout", limit, "--timeout", limit) as running:
        wait_until(lambda: full(running), "two full pools", LIMIT_S)
        yield running


def at_most() -> int:
    """Return what two generations may have."""
    most = WORKERS * (PLAN.worker + MONGODB_EXTRA_A_WORKER + 1 + MONGODB_EXTRA_A_WORKER)
    assert most <= PLAN.host
    return most


def full(running: Service) -> bool:
    """Return whether each worker has said that its pool has its whole share."""
    log = running.log
    return len(running.workers()) == WORKERS and all(
        re.search(rf"^.+ \[{pid}\] .*mongodb pool: {PLAN.worker} connections$", log, re.MULTILINE)
        for pid in running.workers()
    )


def small(running: Service) -> int:
    """Return how many workers have said that they begin with one connection."""
    return running.log.count("mongodb pool: 1 connection until the old workers are gone")


@contextmanager
def begun(running: Service) -> Iterator[Callable[[], None]]:
    """Have a request that each worker waits for to the end, until the function is called."""
    with ExitStack() as stack:
        clients = []
        for pid in running.workers():
            with stopped(set(running.workers()) - {pid}):  # so that this one takes it
                client = socket.create_connection(("127.0.0.1", running.port), timeout=LIMIT_S)
                stack.enter_context(client)
                state = {"task_id": 2, "agent_id": new_id(), "data": {}}
                body = json.dumps(state).encode()
                client.sendall(HEAD % len(body) + body[:1])
                port = client.getsockname()[1]
                wait_until(lambda pid=pid, port=port: port in peers(pid), "it to be taken", LIMIT_S)
                clients.append((client, body[1:]))

        def finish() -> None:
            for client, rest in clients:
                client.sendall(rest)
            for client, _ in clients:
                assert client.recv(12) == b"HTTP/1.1 201"

        yield finish


@contextmanager
def stopped(pids: set[int]) -> Iterator[None]:
    """Have the processes do nothing for the length of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def peers(pid: int) -> set[int]:
    """Return the ports that the process is connected to."""
    found = psutil.Process(pid).net_connections("tcp")
    return {one.raddr.port for one in found if one.raddr and one.status == "ESTABLISHED"}


def new_id() -> int:
    return time.monotonic_ns() % 2**30


def ask_for_a_state(running: Service) -> Load:
    """Have more clients than connections ask for a new state, without a pause."""
    state = {"task_id": 1, "agent_id": new_id(), "data": {}}
    path = running.ask("POST", "/states", state).headers["Location"]
    return Load(("127.0.0.1", running.port), path=path, clients=60)


def held_by(pid: int, server: Mongo) -> int:
    """Return the connections of the process to the server."""
    all_of_it = psutil.Process(pid).net_connections("tcp")
    return sum(
        bool(one.raddr) and one.raddr.port == server.port and one.status == "ESTABLISHED"
        for one in all_of_it
    )


def test_the_plan_of_these_tests_has_no_room_for_two_generations() -> None:
    """Otherwise they would prove nothing."""
    assert PLAN.worker > MIN_POOL_SIZE
    assert 2 * WORKERS * PLAN.worker > PLAN.host


@pytest.mark.timeout(600)
def test_reloads_under_load_stay_within_the_plan(
    running: Service, server: Mongo, connections: Connections
) -> None:
    """None is refused, the server never counts more, and each generation grows to its share."""
    load = ask_for_a_state(running)
    for reload in range(1, RELOADS + 1):
        old = set(running.workers())
        with begun(running) as finish:
            running.process.send_signal(signal.SIGHUP)
            wait_until(
                lambda n=reload: small(running) == n * WORKERS, "pools of one connection", LIMIT_S
            )
            before = len(load.answered)
            wait_until(lambda n=before: len(load.answered) > n + 100, "more answers", LIMIT_S)
            assert old <= set(running.workers())
            finish()
        wait_until(lambda old=old: not old & set(running.workers()), "the old ones to go", LIMIT_S)
        wait_until(lambda: full(running), "full pools", LIMIT_S)
        for pid in running.workers():
            wait_until(
                lambda pid=pid: held_by(pid, server) > MIN_POOL_SIZE,
                "more connections than a worker begins with",
                LIMIT_S,
            )
    load.stop()
    print(f"most={connections.most()} looks={connections.looks()} answers={len(load.answered)}")
    assert load.failures == {}
    assert set(load.statuses) == {200}
    assert connections.looks() > 1_000 * RELOADS / 3
    assert WORKERS * MIN_POOL_SIZE < connections.most() <= at_most()
    assert small(running) == RELOADS * WORKERS


@in_the_long_form
@pytest.mark.timeout(600)
def test_the_successor_of_a_killed_worker_gets_its_share(
    running: Service, server: Mongo, connections: Connections
) -> None:
    """What a kill -9 left is free a moment later, and not before."""
    load = ask_for_a_state(running)
    for _ in range(KILLS):
        victim = min(running.workers())
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda victim=victim: victim not in running.workers(), "it to be gone", LIMIT_S)
        wait_until(lambda: full(running), "full pools", LIMIT_S)
    load.stop()
    print(f"most={connections.most()} looks={connections.looks()} answers={len(load.answered)}")
    assert set(load.statuses) == {200}
    assert connections.most() <= at_most()
