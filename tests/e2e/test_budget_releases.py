"""Releases with the budget at the limit: by HUP and by USR2, under load, judged by the server."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from bench.backends import Backends, Highest
from bench.budget import refusals
from embedded.mongo import Mongo
from embedded.postgres import Postgres, temporary
from tests.helpers.load import Load
from tests.helpers.processes import children, pid_in
from tests.helpers.support import Databases, run, service, wait_until

WORKERS = 3
# Less than two connections for each worker of two generations: the last ones have to wait.
BUDGET = 2 * WORKERS * 2 - 2
LIMIT = BUDGET + 1  # a command's, which looks at the budget before the workers start
PATH, CLIENTS = "/diagnostics/sleep?seconds=0.02", 10  # of each kind
SOME = 100  # requests


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A Postgres that refuses our role more connections than the budget and a command's."""
    with temporary() as server:
        with closing(psycopg2.connect(server.superuser_url)) as conn, conn.cursor() as cursor:
            cursor.execute(f"alter role greenline connection limit {LIMIT}")
            conn.commit()
        yield server


@pytest.fixture
def databases(server: Postgres, mongo: Mongo) -> Databases:
    """Both servers with the schema."""
    databases = Databases(server.url, mongo.url)
    run(["flask", "db", "upgrade"], databases.environ)
    return databases


def test_releases_at_the_limit_fail_no_request(
    server: Postgres, databases: Databases, tmp_path: Path
) -> None:
    """Two generations of workers, twice: the server refuses none, and counts none too many."""
    pid_file = tmp_path / "pid"
    environ = {
        **databases.environ, "WEB_CONCURRENCY": str(WORKERS), "GREENLINE_DIAGNOSTICS": "1",
        "GREENLINE_SURGE_HOSTS": "0",
    }  # fmt: skip
    successor = 0
    with (
        service(environ, "--pid", str(pid_file)) as running,
        closing(Backends(server.superuser_url)) as backends,
        Highest(backends) as highest,
    ):
        loads = [
            Load(("127.0.0.1", running.port), path=PATH, clients=CLIENTS, keep=keep)
            for keep in (True, False)
        ]
        kept, _ = loads
        try:
            goes_on(kept)
            old = set(running.workers())
            running.process.send_signal(signal.SIGHUP)
            wait_until(lambda: not old & set(running.workers()), "new workers")
            goes_on(kept)
            running.process.send_signal(signal.SIGUSR2)
            successor = wait_until(lambda: pid_in(Path(f"{pid_file}.2")), "a new arbiter")
            wait_until(lambda: backends.count() >= BUDGET, "the limit", 60)
            goes_on(kept)
            running.stop()
            goes_on(kept)
            for load in loads:
                load.stop()
        finally:
            if successor:
                os.kill(successor, signal.SIGTERM)
                wait_until(lambda: not children(successor), "its end")
    for load in loads:
        assert load.failures == {}
        assert set(load.statuses) == {200}
        assert load.refused == 0
    assert BUDGET <= highest.seen <= LIMIT
    assert refusals(server) == 0


def goes_on(load: Load) -> None:
    """Wait until some more requests were answered."""
    enough = len(load.answered) + SOME
    wait_until(lambda: len(load.answered) >= enough, "some load")
