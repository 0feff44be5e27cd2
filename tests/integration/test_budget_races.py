"""What happens in between: to the slots of pools, the control connection and other libraries."""

import gc
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import gevent
import pytest

from greenline.errors import GreenlineError
from greenline.ledger import Ledger
from greenline.postgres.connect import connect
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.creator import creator
from greenline.postgres.pool import ConnectionPool
from tests.integration.pools import Watch, limited, run
from tests.support import wait_until

Opener = Callable[..., Connection]


@pytest.fixture
def opener(watch: Watch) -> Opener:
    """Twenty connections at most."""
    return partial(connect, f"{limited(watch, 20)}&application_name={watch.name}", 5.0)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends with the test."""
    with ExitStack() as one:
        yield one


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def test_a_control_connection_that_was_ended_takes_its_own_place_again(
    path: Path, opener: Opener, watch: Watch
) -> None:
    """All other slots are taken, the last resort too: its own one is free again."""
    ledger, other = Ledger(path), Ledger(path)
    for one in (ledger, other):
        one.resize(2, 2)
    control = Control(opener, ledger=ledger)
    pid = control.ask(lambda conn: conn.pid)
    assert other.take() is not None
    assert other.take(for_control=True) is not None  # the last resort
    watch.ask("select pg_terminate_backend(%s)", pid)
    wait_until(lambda: watch.count() == 0, "it to be gone")
    gevent.sleep(0.05)
    try:
        assert control.ask(lambda conn: conn.pid) != pid
    finally:
        control.close()
        ledger.close()
        other.close()


def test_renew_waits_until_the_budget_is_read(path: Path, opener: Opener) -> None:
    """Another greenlet's renew() must not pass while on_connect still reads the budget."""
    ledger = Ledger(path)
    ledger.resize(4, 2)
    read = []

    def follow(conn: Connection) -> None:
        with conn.cursor() as cursor:
            cursor.execute("select pg_sleep(0.2)")
        read.append(conn.pid)

    control = Control(opener, ledger=ledger, on_connect=follow)
    first = gevent.spawn(control.renew)
    wait_until(lambda: control._lock.locked(), "first")
    wait_until(lambda: ledger.stats()["held"] == 1, "slot")
    gevent.sleep(0.1)
    control.renew()
    try:
        assert read
    finally:
        first.get()
        control.close()
        ledger.close()


def test_a_pool_with_a_slot_waits_for_one_for_the_control_connection(
    path: Path, opener: Opener
) -> None:
    """Whoever waits in the queue is served when there is room, instead of failed at once."""
    ledger, other = Ledger(path), Ledger(path)
    for one in (ledger, other):
        one.resize(2, 0)
    held = other.take()
    another = other.take(for_control=True)
    assert other.take(for_control=True) is not None  # the last resort
    assert held is not None
    assert another is not None
    control = Control(opener, ledger=ledger)
    pool = ConnectionPool(opener, max_size=5, control=control, ledger=ledger, timeout_s=3.0)
    asked = gevent.spawn(run, pool, "select 7")
    gevent.sleep(0.05)
    other.give(held)  # one place: for the pool or the control connection, not for both
    gevent.sleep(0.3)
    other.give(another)
    try:
        assert asked.get(timeout=5) == 7
    finally:
        pool.close(1.0)
        control.close()
        ledger.close()
        other.close()


def test_two_pools_of_one_worker_share(path: Path, opener: Opener) -> None:
    """What lies idle in one pool is given to the other of the same worker."""
    ledger = Ledger(path)
    ledger.resize(3, 2)
    one = ConnectionPool(opener, max_size=5, ledger=ledger, timeout_s=2.0)
    two = ConnectionPool(opener, max_size=5, ledger=ledger, timeout_s=2.0)
    gevent.joinall([gevent.spawn(run, one, "select pg_sleep(0.1)") for _ in range(5)])
    assert one.stats()["idle"] >= 2
    try:
        assert run(two, "select 7") == 7
    finally:
        one.close()
        two.close()
        ledger.close()


def test_no_slot_is_lost_when_descriptors_run_out(path: Path, opener: Opener) -> None:
    """EMFILE while a connection settles or is seen off."""
    ledger = Ledger(path)
    ledger.resize(3, 0)
    pool = ConnectionPool(opener, max_size=5, ledger=ledger, timeout_s=2.0)
    run(pool, "select 1")
    pool.evict()
    wait_until(lambda: pool.stats()["size"] == 0, "gone")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    try:
        for more in range(1, 6):
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, hard))
            with suppress(GreenlineError, OSError):
                run(pool, "select 1")
            pool.evict()
            gevent.sleep(0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    gc.collect()
    gevent.sleep(0.5)
    try:
        assert pool.stats()["size"] == 0
        assert ledger.stats()["held"] == 0
    finally:
        pool.close()
        ledger.close()


def test_a_created_connection_that_is_dropped_gives_its_slot_back(
    path: Path, opener: Opener
) -> None:
    """Dropped without a close, as in a traceback's frames."""
    ledger = Ledger(path)
    ledger.resize(2, 0)
    conn = creator(opener, ledger)()
    assert ledger.stats()["held"] == 1
    del conn
    gc.collect()
    try:
        wait_until(lambda: ledger.stats()["held"] == 0, "slot", 2)
    finally:
        ledger.close()


def test_nobody_connects_in_a_slot_that_is_over_by_now(
    path: Path, opener: Opener, watch: Watch
) -> None:
    """The slots were taken before the lower limit was read."""
    ledger = Ledger(path)
    ledger.resize(8, 2)
    control = Control(opener, ledger=ledger, on_connect=lambda _: ledger.resize(3, 2))
    made = []

    def counted(*, abandon: Callable[[Connection], None]) -> Connection:
        made.append(1)
        return opener(abandon=abandon)

    pool = ConnectionPool(counted, max_size=10, control=control, ledger=ledger, timeout_s=5.0)
    asked = [gevent.spawn(run, pool, "select pg_sleep(0.5)") for _ in range(6)]
    highest = 0
    while not all(one.ready() for one in asked):
        highest = max(highest, watch.count())
        gevent.sleep(0.005)
    try:
        gevent.joinall(asked, raise_error=True)
        assert highest <= 3, highest
        assert len(made) == 2
    finally:
        pool.close(1.0)
        control.close()
        ledger.close()


def test_who_waits_for_a_deaf_server_waits_once(path: Path, stack: ExitStack) -> None:
    """Six connects to a deaf server fail together, not one after the other."""
    deaf = socket.socket()
    deaf.bind(("127.0.0.1", 0))
    deaf.listen(100)
    stack.enter_context(deaf)
    opener = partial(connect, f"postgresql://a@127.0.0.1:{deaf.getsockname()[1]}/a", 0.5)
    ledger = Ledger(path)
    ledger.resize(20, 2)
    control = Control(opener, ledger=ledger)
    pool = ConnectionPool(opener, max_size=10, control=control, ledger=ledger, timeout_s=10.0)
    begun = time.monotonic()
    asked = [gevent.spawn(run, pool, "select 1") for _ in range(6)]
    gevent.joinall(asked)
    took = time.monotonic() - begun
    try:
        assert [type(one.exception).__name__ for one in asked] == ["StoreDown"] * 6
        assert took < 2, took
    finally:
        pool.close(1.0)
        control.close()
        ledger.close()


def test_another_librarys_wait_is_heard(path: Path, opener: Opener) -> None:
    """What lies idle in our pool is given to it."""
    ledger = Ledger(path)
    ledger.resize(3, 2)
    one = ConnectionPool(opener, max_size=5, ledger=ledger, timeout_s=2.0)
    gevent.joinall([gevent.spawn(run, one, "select pg_sleep(0.1)") for _ in range(5)])
    create = creator(opener, ledger, timeout_s=2.0)
    try:
        create().close()
    finally:
        one.close()
        ledger.close()
