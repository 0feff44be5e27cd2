"""The pool under random interleavings on a driver without a server: the counts stay right."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import gevent
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg2.extensions import (
    TRANSACTION_STATUS_ACTIVE,
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_INTRANS,
)

from greenline.errors import GreenlineError, StoreDown
from greenline.postgres.pool import ConnectionPool


class Driver:
    """Makes connections that switch to others at given points, and counts the backends."""

    def __init__(self, switches: list[int]) -> None:
        self._switches = switches or [1]
        self._next = 0
        self.backends = 0
        self.highest = 0

    def wait(self) -> None:
        """Let the others run a random number of times, as a wait for I/O does."""
        self._next = (self._next + 1) % len(self._switches)
        for _ in range(self._switches[self._next]):
            gevent.sleep(0)

    def connect(self, *, abandon: Any) -> Any:
        self.backends += 1
        self.highest = max(self.highest, self.backends)
        try:
            self.wait()
            if self._switches[self._next] == 5:
                raise StoreDown
            if self._switches[self._next] == 4:
                abandon(Fake(self))
                self.backends += 1
                raise StoreDown
        except BaseException:
            self.backends -= 1
            raise
        return Fake(self)


class Fake:
    """A connection with a real descriptor, at whose other end the backend closes late."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._ours, self._servers = socket.socketpair()
        self.info = SimpleNamespace(transaction_status=TRANSACTION_STATUS_IDLE)
        self.closed, self.autocommit, self.duplicate_fd, self.busy = 0, False, None, False
        self.settled, self.is_requested, self.slot = True, True, None
        self.pid, self.made_s, self.idle_since_s, self.expires_s = 1, 0.0, 0.0, 0.0

    def fileno(self) -> int:
        return self._ours.fileno()

    def work(self) -> None:
        self.info.transaction_status = TRANSACTION_STATUS_ACTIVE
        self._driver.wait()
        self.info.transaction_status = TRANSACTION_STATUS_INTRANS

    def commit(self) -> None:
        self._driver.wait()
        self.info.transaction_status = TRANSACTION_STATUS_IDLE

    rollback = commit

    def close(self) -> None:
        if not self.closed:
            self.closed = 1
            self._ours.close()
            gevent.spawn(self._end)

    def _end(self) -> None:
        self._driver.wait()
        self._driver.backends -= 1
        self._servers.close()


class Switching(logging.Handler):
    """Switches to others at each record, as a handler that writes to a network does."""

    def emit(self, record: logging.LogRecord) -> None:
        gevent.sleep(0)


@contextmanager
def switching_logs(is_on: bool) -> Iterator[None]:
    """Log at DEBUG with a handler that switches, for the length of the block."""
    log, handler = logging.getLogger("greenline.postgres"), Switching()
    if not is_on:
        yield
        return
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@settings(max_examples=150)
@given(
    max_size=st.integers(1, 4),
    switches=st.lists(st.integers(0, 5), min_size=1, max_size=15),
    work=st.lists(st.integers(0, 3), min_size=1, max_size=25),
    kills=st.lists(st.tuples(st.integers(0, 24), st.integers(0, 30)), max_size=15),
    sizes=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=3),
    evictions=st.lists(st.integers(0, 30), max_size=3),
    timeout_s=st.sampled_from([None, 0.0, 0.0005]),
    logs=st.booleans(),
)
def test_whatever_is_killed_and_whenever_the_counts_stay_right(logs: bool, **drawn: Any) -> None:
    """No slot is lost or doubled, the limit holds, and the next borrower is served."""
    with switching_logs(logs):
        check(**drawn)


def check(
    max_size: int,
    switches: list[int],
    work: list[int],
    kills: list[tuple[int, int]],
    sizes: list[tuple[int, int]],
    evictions: list[int],
    timeout_s: float | None,
) -> None:
    driver = Driver(switches)
    pool = ConnectionPool(driver.connect, max_size=max_size, max_waiting=20, timeout_s=timeout_s)
    limit = max([max_size, *(size for _, size in sizes)])

    def borrow(turns: int) -> None:
        try:
            with pool.connection(reset=False) as conn:
                for _ in range(turns):
                    conn.work()  # type: ignore[attr-defined]
        except GreenlineError:
            pass

    workers = [gevent.spawn(borrow, turns) for turns in work]
    for step in range(31):
        for victim, when in kills:
            if when == step and victim < len(workers):
                workers[victim].kill(block=False)
        for when, size in sizes:
            if when == step:
                pool.resize(size)
        if step in evictions:
            pool.evict()
        gevent.sleep(0)
    gevent.joinall(workers, timeout=40)
    assert all(worker.ready() for worker in workers)
    with gevent.Timeout(10):
        while pool.stats()["leaving"] or pool.stats()["active"]:
            gevent.sleep(0)
        stats = pool.stats()
        assert stats["size"] == stats["idle"] == driver.backends
        assert stats["waiting"] == 0
        assert driver.highest <= limit
        pool.close(5.0)
        while driver.backends:
            gevent.sleep(0)
    assert pool.stats()["size"] == 0
