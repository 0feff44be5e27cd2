"""The values at ``/metrics`` and ``/state``, against numbers that the test knows."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from embedded.postgres import temporary
from tests.e2e.hosting import NO_CONFIG, hosting
from tests.helpers.processes import lives, ops_process
from tests.helpers.support import CHECKOUT, Service, environ, free_port, wait_until

APP = "tests.e2e.measured:app"
# Of these, 3 are the superusers' and 3 the head-room; half of the rest is another host's while a
# deploy rolls. The connection of the test makes no difference.
MAX_CONNECTIONS, CAPACITY = 41, 17
LIMITS = {
    "GREENLINE_POOL": "1", "POSTGRES_POOL_SIZE": "3", "WEB_CONCURRENCY": "1",
    "GREENLINE_MAX_IN_PROGRESS": "5", "GREENLINE_MAX_WAITING": "4",
    "GREENLINE_BLOCKED_HUB_MS": "800",
}  # fmt: skip
LONG_S, SHORT_S = 300, 0.5  # REQUEST_TIMEOUT: no request that is held may miss its deadline
# After so many queries it is known that none needs two connections: the pool lends all that it has.
ASKED = {"/books": 11, "/missing": 7, "/broken": 8, "/query": 41, "/block": 2}
POOL = '{pool="psycopg2 pool"}'
# While five requests are worked on, of which the pool lets two wait, and four wait for their turn.
HELD = {
    "requests_in_progress": 5, "requests_waiting": 4, "concurrency_limit": 5,
    "connections": 10, "connections_idle": 1, "connections_max": 1000,
    'pool_connections{pool="psycopg2 pool",state="active"}': 3,
    'pool_connections{pool="psycopg2 pool",state="idle"}': 0,
    'pool_connections{pool="psycopg2 pool",state="leaving"}': 0,
    f"pool_connections_max{POOL}": 3, f"pool_waiting{POOL}": 2,
    # One more is for questions; another process has two.
    f"slots_held{POOL}": 3 + 1, f"slots_held_by_all{POOL}": 3 + 1 + 2,
    f"slots_capacity{POOL}": CAPACITY, f"slots_orphans{POOL}": 0, f"slots_wanted{POOL}": 0,
}  # fmt: skip
# The same at /state, which the page and top show.
OF_POOL = {"psycopg2 pool": {"max_size": 3, "active": 3, "idle": 0, "waiting": 2}}
STATE = {
    "pools": OF_POOL,
    "slots": {
        "psycopg2 pool": {
            "capacity": CAPACITY,
            "held": 6,
            "orphans": 0,
            "wanted": 0,
            "text": "6 of 17 slots of the host are held: 4 by worker W, "
            "2 by other processes of the host",
        },
    },
}
OF_WORKER = {
    "in_progress": 5, "waiting": 4, "max_waiting": 4, "limit": 5,
    "connections": 10, "connections_max": 1000,
    "pools": OF_POOL, "slots": {"psycopg2 pool": {"held": 4, "is_waiting": False}},
}  # fmt: skip
# Afterwards, when the clients of three of those have gone, and nine more were refused.
COUNTED = {
    'requests_total{method="GET",route="/books",status="200"}': 11,
    'requests_total{method="GET",route="/missing",status="404"}': 7,
    'requests_total{method="GET",route="/broken",status="500"}': 8,
    'requests_total{method="GET",route="/query",status="200"}': 41,
    'requests_total{method="GET",route="/block",status="200"}': 2,
    'requests_total{method="GET",route="/idle",status="200"}': 1,
    'requests_total{method="GET",route="/hold",status="200"}': 5 + 4 - 3,
    'requests_total{method="GET",route="/late",status="504"}': 5,
    'requests_total{method="GET",route="-",status="503"}': 9,
    "refused_requests_total": 9, "client_disconnects_total": 3,
    "deadlines_total": 5, "hub_blocks_total": 2,
    f"pool_checkouts_total{POOL}": 41 + 5 + 4 - 3,
    "requests_in_progress": 0, "requests_waiting": 0, "connections": 0,
}  # fmt: skip
OTHER_PROCESS = """
import sys
from greenline.patch import patch_all
patch_all()
from greenline import postgres
with postgres.open().connection():
    print("ready", flush=True)
    sys.stdin.read()
"""


def ask(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def values(port: int, like: dict[str, int]) -> dict[str, float]:
    """Return all values with the names that are in *like*, whatever their labels are."""
    names = {each.partition("{")[0] for each in like}
    found: Counter[str] = Counter()
    for line in ask(port, "/metrics").splitlines():
        metric, _, number = line.removeprefix("greenline_").rpartition(" ")
        name = metric.partition("{")[0]
        if name == "refused_requests_total":
            metric = name  # the sum over its reasons
        # The start asks /count until there is an answer.
        if name in names and 'route="/count"' not in metric:
            found[metric] += float(number)  # type: ignore[assignment]
    return dict(found)


def state(port: int) -> list[dict[str, Any]]:
    """Return what /state has of STATE and, of its one worker, of OF_WORKER."""
    shown = json.loads(ask(port, "/state"))
    (worker,) = shown["workers"]
    for slots in shown["slots"].values():
        slots["text"] = slots["text"].replace(str(worker["pid"]), "W")
    return [
        {name: shown[name] for name in STATE},
        {name: worker[name] for name in OF_WORKER},
    ]


def until_equal(read: Callable[[], object], expected: object) -> None:
    """Wait until *read* returns *expected*, and show the difference where it does not."""
    found: object = None

    def is_equal() -> bool:
        nonlocal found
        found = read()
        return found == expected

    try:
        wait_until(is_equal, "the values")
    finally:
        assert found == expected


def asking(running: Service, path: str) -> socket.socket:
    """Send a request on a connection of its own, which stays open."""
    client = socket.create_connection(("127.0.0.1", running.port), timeout=60)
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return client


def answered(client: socket.socket) -> bool:
    return client.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


@contextmanager
def other_process(given: dict[str, str]) -> Iterator[None]:
    """Run a process that is no worker, and holds two connections of the host."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS],
        cwd=CHECKOUT, env=environ(given), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        process.communicate()
    assert process.returncode == 0


def test_each_value_is_what_has_happened(tmp_path: Path) -> None:
    """Gauges while requests are held, and counts after them, over two generations of workers."""
    conf, port = tmp_path / "conf.py", free_port()

    def limit(seconds: float) -> None:
        text = (CHECKOUT / NO_CONFIG).read_text()
        conf.write_text(f'{text}raw_env = ["REQUEST_TIMEOUT={seconds}"]\n')

    limit(LONG_S)
    with ExitStack() as stack:
        postgres = stack.enter_context(temporary(MAX_CONNECTIONS))
        given = {
            **LIMITS, "DATABASE_URL": f"{postgres.url}&connect_timeout={LONG_S}",
            "GREENLINE_OPS_BIND": f"127.0.0.1:{port}",
        }  # fmt: skip
        running = stack.enter_context(
            hosting(APP, "-c", str(conf), "--keep-alive", str(LONG_S), **given)
        )
        for path, number in ASKED.items():
            for _ in range(number):
                running.get(path)
        stack.enter_context(other_process(given))
        lock = stack.enter_context(closing(psycopg2.connect(postgres.superuser_url)))
        cursor = lock.cursor()
        cursor.execute("select pg_advisory_xact_lock(1)")
        idle = stack.enter_context(asking(running, "/idle"))
        assert answered(idle)

        held = [stack.enter_context(asking(running, "/hold")) for _ in range(5)]
        wait_until(lambda: values(port, HELD)["requests_in_progress"] == 5, "them to be held")
        held += [stack.enter_context(asking(running, "/hold")) for _ in range(4)]
        until_equal(lambda: values(port, HELD), HELD)
        until_equal(lambda: state(port), [STATE, OF_WORKER])
        cursor.execute("select count(*) from pg_stat_activity where usename = 'greenline'")
        assert cursor.fetchone() == (HELD[f"slots_held_by_all{POOL}"],)

        assert {running.get("/books").status for _ in range(9)} == {503}
        for client in held[-3:]:
            client.close()
        wait_until(lambda: values(port, HELD)["requests_waiting"] == 1, "three to be gone")
        lock.rollback()
        assert all(map(answered, held[:-3]))
        for client in (idle, *held):
            client.close()

        limit(SHORT_S)
        (old,) = set(running.workers()) - {ops_process(running.process.pid)}
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not lives(old), "another worker")
        with ThreadPoolExecutor(5) as clients:
            answers = clients.map(running.get, ["/late"] * 5)
            assert {each.status for each in answers} == {504}
        until_equal(lambda: values(port, COUNTED), COUNTED)
