"""RATE_LIMIT: one count for all workers of a host, or for several hosts in a shared store."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.factory import counts_path
from embedded.redis import Redis
from greenline.errors import ConfigError
from tests.helpers.forms import in_the_long_form
from tests.helpers.processes import children, pid_in
from tests.helpers.support import IS_LONG, Databases, Service, service, wait_until

WORKERS = 4 if IS_LONG else 2
ALLOWED, ASKED, CLIENTS = 100, 160, 8


@pytest.fixture
def limited(databases: Databases) -> Iterator[dict[str, str]]:
    """The settings of a service that allows so many requests of an address."""
    counts = counts_path(databases.postgres)
    counts.unlink(missing_ok=True)
    yield {**databases.environ, "RATE_LIMIT": f"{ALLOWED}/hour"}
    counts.unlink(missing_ok=True)


def asked(running: Service, times: int) -> "Counter[int]":
    """Ask from several clients at once and return how often each status was answered."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        return Counter(clients.map(lambda _: running.get("/agents").status, range(times)))


def test_a_limit_is_exact_over_workers_and_reloads(limited: dict[str, str]) -> None:
    """Several workers, a reload and a killed worker allow as many together as one would."""
    with service({**limited, "WEB_CONCURRENCY": str(WORKERS)}) as running:
        statuses = asked(running, ALLOWED // 2)
        before = set(running.workers())
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not before & set(running.workers()), "a reload")
        wait_until(running.is_ready, "the new workers")
        statuses += asked(running, ALLOWED // 4)
        os.kill(running.workers()[0], signal.SIGKILL)
        wait_until(lambda: len(running.workers()) == WORKERS, "another worker")
        statuses += asked(running, ASKED - ALLOWED * 3 // 4)
    assert statuses == {200: ALLOWED, 429: ASKED - ALLOWED}


@in_the_long_form
def test_an_upgrade_goes_on_counting(limited: dict[str, str], tmp_path: Path) -> None:
    """USR2 starts another gunicorn, which allows what the one before it has left."""
    pid_file, successor = tmp_path / "pid", 0
    try:
        with service({**limited, "WEB_CONCURRENCY": "1"}, "--pid", str(pid_file)) as running:
            statuses = asked(running, ALLOWED // 2)
            running.process.send_signal(signal.SIGUSR2)
            successor = wait_until(lambda: pid_in(Path(f"{pid_file}.2")), "a new arbiter")
            wait_until(lambda: children(successor), "its worker")
            assert running.stop() == 0
            wait_until(running.is_ready, "the new worker")
            statuses += asked(running, ASKED - ALLOWED // 2)
    finally:
        if successor:
            os.kill(successor, signal.SIGTERM)
            wait_until(lambda: not running.is_alive(), "its end")
    assert statuses == {200: ALLOWED, 429: ASKED - ALLOWED}


@pytest.fixture
def store() -> Iterator[Redis]:
    """A redis-server, not running yet."""
    pytest.importorskip("redis")
    try:
        with Redis() as server:
            server.stop()
            yield server
    except ConfigError as error:
        pytest.skip(str(error))


def test_two_hosts_count_together_in_a_shared_store(limited: dict[str, str], store: Redis) -> None:
    """While it is away each host counts by itself, and the log says so once."""
    limited = {
        **limited,
        "RATE_LIMIT_STORAGE": f"redis://127.0.0.1:{store.port}",
        "WEB_CONCURRENCY": "1",
    }
    with service(limited) as one, service(limited) as other:
        with store:
            statuses = asked(one, ALLOWED // 2) + asked(other, ASKED - ALLOWED // 2)
            assert statuses == {200: ALLOWED, 429: ASKED - ALLOWED}
        assert asked(one, ASKED) == {200: ALLOWED, 429: ASKED - ALLOWED}
        assert one.log.count("this host counts by itself") == 1


def test_a_store_that_there_is_not_is_refused(limited: dict[str, str]) -> None:
    """In one line, which names the variable and shows no password."""
    bad = {**limited, "RATE_LIMIT_STORAGE": "nothing://me:secret@h"}
    with service(bad, wait=False) as running:
        assert running.process.wait(timeout=60) != 0
        assert "greenline: RATE_LIMIT_STORAGE: " in running.log
        assert "secret" not in running.log
