"""What happens in between: to the slots of pools, the control connection and other libraries."""

import gc
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import gevent.event
import pytest
from psycopg2.extensions import TRANSACTION_STATUS_ACTIVE

from embedded.postgres import Postgres
from greenline.errors import (
    DeadlineExceeded,
    GreenlineError,
    PoolClosed,
    PoolTimeout,
    StoreDown,
)
from greenline.hub import deadline
from greenline.postgres.clean import is_dead
from greenline.postgres.connect import connect
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.creator import creator
from greenline.postgres.limits import read_facts
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.reaper import Reaper
from greenline.slots import SlotTable
from tests.helpers.pools import Watch, limited, run, through
from tests.helpers.proxy import Proxy
from tests.helpers.support import CHECKOUT, wait_until

Opener = Callable[..., Connection]
Opened = Callable[[int, int], SlotTable]
Controlled = Callable[..., Control]
Pooled = Callable[..., ConnectionPool]


@pytest.fixture
def opener(watch: Watch) -> Opener:
    """Twenty connections at most."""
    return partial(connect, f"{limited(watch, 20)}&application_name={watch.name}", 5.0)


@pytest.fixture
def opened(tmp_path: Path, stack: ExitStack) -> Opened:
    """Opens slot tables on one file: a worker's each."""

    def opened(capacity: int, reserved: int) -> SlotTable:
        slot_table = SlotTable(tmp_path / "slots")
        stack.callback(slot_table.close)
        slot_table.resize(capacity, reserved)
        return slot_table

    return opened


@pytest.fixture
def controlled(opener: Opener, stack: ExitStack) -> Controlled:
    """Makes the control connection of a worker's slot table."""

    def controlled(slot_table: SlotTable, connect: Opener = opener, **more: Any) -> Control:
        control = Control(connect, slot_table=slot_table, **more)
        stack.callback(control.close)
        return control

    return controlled


@pytest.fixture
def pooled(opener: Opener, stack: ExitStack) -> Pooled:
    """Makes pools on a worker's slot table."""

    def pooled(slot_table: SlotTable, connect: Opener = opener, **more: Any) -> ConnectionPool:
        pool = ConnectionPool(connect, max_size=10, slot_table=slot_table, **more)
        stack.callback(pool.close, 1.0)
        return pool

    return pooled


def test_a_control_connection_that_was_ended_takes_its_own_place_again(
    opened: Opened, controlled: Controlled, watch: Watch
) -> None:
    """All other slots are taken, and the last resort is not for it: its own one is free again."""
    slot_table, other = opened(2, 2), opened(2, 2)
    control = controlled(slot_table)
    pid = control.ask(lambda conn: conn.pid)
    assert other.take() is not None
    assert other.take(for_control=True) is None
    watch.ask("select pg_terminate_backend(%s)", pid)
    wait_until(lambda: control._conn is not None and is_dead(control._conn), "its end to be seen")
    assert control.ask(lambda conn: conn.pid) != pid


def test_a_control_connection_whose_end_is_announced_is_not_asked(
    opened: Opened, controlled: Controlled, proxy: Proxy, watch: Watch
) -> None:
    """The server says that it ends the connection a moment before it closes it."""
    control = controlled(opened(2, 2), partial(connect, through(proxy), 5.0))
    pid = control.ask(lambda conn: conn.pid)
    proxy.keep_open()
    watch.ask("select pg_terminate_backend(%s)", pid)
    wait_until(lambda: control._conn is not None and is_dead(control._conn), "the announcement")
    assert control.ask(lambda conn: conn.pid) != pid


def test_over_tcp_too_a_server_that_ends_a_connection_leaves_no_orphan(
    opened: Opened, controlled: Controlled, proxy: Proxy, watch: Watch
) -> None:
    """Whether its end or its announcement is seen first; what libpq sends then is reset."""
    slot_table = opened(2, 2)
    control = controlled(slot_table, partial(connect, through(proxy), 5.0))
    for wait_s in (0.0, 0.002, 0.005, 0.02):
        pid = control.ask(lambda conn: conn.pid)
        proxy.keep_open()
        watch.ask("select pg_terminate_backend(%s)", pid)
        gevent.spawn_later(wait_s, proxy.pass_on)
        wait_until(lambda: control._conn is None or is_dead(control._conn), "the announcement")
        began_s = time.monotonic()
        assert control.ask(lambda conn: conn.pid) != pid
        assert time.monotonic() - began_s < 0.1 + 1.0
        assert slot_table.stats()["orphans"] == 0


def test_renew_waits_until_the_budget_is_read(opened: Opened, controlled: Controlled) -> None:
    """Another greenlet's renew() must not pass while on_connect still reads the budget."""
    is_reading, go_on = gevent.event.Event(), gevent.event.Event()
    read = []

    def follow(conn: Connection) -> None:
        is_reading.set()
        go_on.wait()
        read.append(conn.pid)

    control = controlled(opened(4, 2), on_connect=follow)
    first = gevent.spawn(control.renew)
    assert is_reading.wait(40)
    other = gevent.spawn(control.renew)
    gevent.sleep(0.1)
    assert not other.ready()
    go_on.set()
    gevent.joinall([first, other], timeout=40, raise_error=True)
    assert len(read) == 1


def test_a_deadline_in_the_connect_fails_the_one_whose_deadline_it_is(
    opened: Opened, controlled: Controlled, opener: Opener
) -> None:
    """Another request that waits for the same connect has time left, and tries by itself."""
    connecting: list[int] = []
    passes = gevent.event.Event()

    def connect_late(**options: Any) -> Connection:
        connecting.append(1)
        if len(connecting) > 1:
            return opener(**options)
        passes.wait()
        raise DeadlineExceeded

    control = controlled(opened(4, 2), connect_late)
    first = gevent.spawn(control.renew)
    wait_until(lambda: connecting, "the first connect")
    other = gevent.spawn(control.renew)
    gevent.idle()
    passes.set()
    other.get(timeout=40)
    with pytest.raises(DeadlineExceeded):
        first.get(timeout=40)
    assert len(connecting) == 2


def test_a_pool_with_a_slot_waits_for_one_for_the_control_connection(
    opened: Opened, controlled: Controlled, pooled: Pooled
) -> None:
    """A waiter in the queue is served when there is room, instead of failed at once."""
    slot_table, other = opened(2, 0), opened(2, 0)
    held = other.take()
    another = other.take(for_control=True)
    assert other.take(for_control=True) is not None  # the last resort
    assert held is not None
    assert another is not None
    control = controlled(slot_table)
    pool = pooled(slot_table, control=control, timeout_s=3.0)
    asked = gevent.spawn(run, pool, "select 7")
    gevent.sleep(0.05)
    other.give(held)  # one place: for the pool or the control connection, not for both
    gevent.sleep(0.3)
    other.give(another)
    assert asked.get(timeout=40) == 7


def test_two_pools_of_one_worker_share(opened: Opened, pooled: Pooled) -> None:
    """What lies idle in one pool is given to the other of the same worker."""
    slot_table = opened(3, 2)
    one = pooled(slot_table, timeout_s=2.0)
    two = pooled(slot_table, timeout_s=2.0)
    gevent.joinall([gevent.spawn(run, one, "select pg_sleep(0.1)") for _ in range(5)])
    wait_until(lambda: one.stats()["idle"] >= 2, "the last connect")
    assert run(two, "select 7") == 7


def test_no_slot_is_lost_when_descriptors_run_out(opened: Opened, pooled: Pooled) -> None:
    """EMFILE while a connection settles or is seen off."""
    slot_table = opened(3, 0)
    pool = pooled(slot_table, timeout_s=2.0)
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
    wait_until(lambda: pool.stats()["size"] == 0, "the last one to be gone")
    wait_until(lambda: slot_table.stats()["held"] == 0, "its slot to be free")


def test_a_created_connection_that_is_dropped_gives_its_slot_back(
    opened: Opened, opener: Opener
) -> None:
    """Dropped without a close, as in a traceback's frames."""
    slot_table = opened(2, 0)
    conn = creator(opener, slot_table)()
    assert slot_table.stats()["held"] == 1
    del conn
    gc.collect()
    wait_until(lambda: slot_table.stats()["held"] == 0, "slot")


EXIT = """
import sys
from functools import partial
from pathlib import Path
from greenline.patch import patch_all
patch_all()
from greenline.slots import SlotTable
from greenline.postgres.connect import connect
from greenline.postgres.creator import creator
slot_table = SlotTable(Path(sys.argv[1]))
slot_table.resize(2)
conn = creator(partial(connect, sys.argv[2], 5.0), slot_table)()
cycle = [conn]
cycle.append(cycle)
if sys.argv[3] == "in a cycle":
    del conn, cycle
"""


@pytest.mark.parametrize("left", ["in a module", "in a cycle"])
def test_a_created_connection_that_is_left_at_exit_is_closed_without_a_word(
    tmp_path: Path, postgres: Postgres, left: str
) -> None:
    """No greenlet can close it then."""
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(tmp_path / "slots"), postgres.url, left],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_process_connects_in_a_slot_that_is_over_by_now(
    opened: Opened, opener: Opener, controlled: Controlled, pooled: Pooled, watch: Watch
) -> None:
    """The slots were taken before the lower limit was read."""
    slot_table = opened(8, 2)
    control = controlled(slot_table, on_connect=lambda _: slot_table.resize(3, 2))
    made = []

    def counted(*, abandon: Callable[[Connection], None]) -> Connection:
        made.append(1)
        return opener(abandon=abandon)

    pool = pooled(slot_table, counted, control=control, timeout_s=5.0)
    asked = [gevent.spawn(run, pool, "select pg_sleep(0.5)") for _ in range(6)]
    highest = 0
    while not all(one.ready() for one in asked):
        highest = max(highest, watch.count())
        gevent.sleep(0.005)
    gevent.joinall(asked, raise_error=True)
    assert highest <= 3, highest
    assert len(made) == 2


def test_another_library_connects_in_no_slot_that_is_over_by_now(
    opened: Opened, opener: Opener, controlled: Controlled, watch: Watch
) -> None:
    """Its slot was taken before the lower limit was read, and is given back."""
    slot_table = opened(8, 2)
    for _ in range(4):
        slot_table.take()
    control = controlled(slot_table, on_connect=lambda _: slot_table.resize(3, 2))
    with pytest.raises(PoolTimeout, match="fewer connections by now"):
        creator(opener, slot_table, control)()
    assert watch.count() == 1
    assert slot_table.stats()["held"] == 4 + 1


def test_who_waits_for_a_deaf_server_waits_once(
    opened: Opened, controlled: Controlled, pooled: Pooled, stack: ExitStack
) -> None:
    """Six connects to a deaf server fail together, not one after the other."""
    deaf = socket.socket()
    deaf.bind(("127.0.0.1", 0))
    deaf.listen(100)
    stack.enter_context(deaf)
    deaf_one = partial(connect, f"postgresql://a@127.0.0.1:{deaf.getsockname()[1]}/a", 0.5)
    slot_table = opened(20, 2)
    control = controlled(slot_table, deaf_one)
    pool = pooled(slot_table, deaf_one, control=control, timeout_s=10.0)
    begun = time.monotonic()
    asked = [gevent.spawn(run, pool, "select 1") for _ in range(6)]
    gevent.joinall(asked)
    took = time.monotonic() - begun
    assert [type(one.exception).__name__ for one in asked] == ["StoreDown"] * 6
    assert took < 2, took


def test_another_librarys_wait_is_heard(opened: Opened, opener: Opener, pooled: Pooled) -> None:
    """What lies idle in our pool is given to it."""
    slot_table = opened(3, 2)
    one = pooled(slot_table, timeout_s=2.0)
    gevent.joinall([gevent.spawn(run, one, "select pg_sleep(0.1)") for _ in range(5)])
    create = creator(opener, slot_table, timeout_s=2.0)
    create().close()


def test_orphans_are_left_when_this_worker_alone_cannot_ask(
    opened: Opened, controlled: Controlled, proxy: Proxy, watch: Watch
) -> None:
    """Another process that can takes them over."""
    dead, slot_table, survivor = opened(4, 2), opened(4, 2), opened(4, 2)
    slot = dead.take()
    assert slot is not None
    slot.hold(watch.ask("select pg_backend_pid()"))
    dead.close()
    control = controlled(slot_table, partial(connect, through(proxy), 5.0))
    reaper = Reaper(slot_table, control)
    reaper.look()
    assert slot_table.stats()["orphans"] == 1
    proxy.refuse()
    with pytest.raises(StoreDown):
        reaper.look()
    assert len(survivor.orphans()) == 1


def test_connecting_while_the_slot_table_is_closed_is_an_error(
    opened: Opened, controlled: Controlled, proxy: Proxy, watch: Watch, opener: Opener
) -> None:
    """What was taken is found by the next worker, whether the connect fails or not."""
    slot_table, survivor = opened(4, 2), opened(4, 2)
    proxy.deafen()
    # Longer than it may take to see that all three connect.
    slow = partial(connect, f"{through(proxy)}&application_name={watch.name}", 2.0)
    failing = gevent.spawn(creator(opener, slot_table, controlled(slot_table, slow)))
    late = gevent.spawn(creator(partial(slow.func, slow.args[0], 20.0), slot_table))
    wait_until(lambda: slot_table.stats()["held"] == 3 and proxy.open == 2, "three to connect")
    slot_table.close()
    with pytest.raises(PoolClosed):
        failing.get(timeout=40)
    proxy.pass_on()
    with pytest.raises(PoolClosed):
        late.get(timeout=40)
    wait_until(lambda: watch.count() == 0, "their backends to be gone")
    assert len(survivor.orphans()) == 3


def test_a_look_at_the_connection_leaves_an_answer_to_the_question(
    opened: Opened, controlled: Controlled, opener: Opener
) -> None:
    """It has arrived, and the greenlet that waits for it has not run yet."""
    control = controlled(opened(4, 2), opener)

    def question(conn: Connection) -> Any:
        with conn.cursor() as cursor:
            cursor.execute("select 7 from pg_sleep(0.2)")
            return cursor.fetchone()

    backend = control.ask(lambda conn: conn.pid)
    asking = gevent.spawn(control.ask, question)
    gevent.sleep(0)
    assert control._conn is not None
    assert control._conn.info.transaction_status == TRANSACTION_STATUS_ACTIVE
    until_s = time.monotonic() + 20
    while not is_dead(control._conn):  # without the hub, which would let the other greenlet read
        assert time.monotonic() < until_s
    control.renew()
    assert asking.get(timeout=20) == (7,)
    assert control.ask(lambda conn: conn.pid) == backend


def test_a_server_that_does_not_report_its_limit_does_not_block(
    opened: Opened, controlled: Controlled, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It connects and is deaf then: a caller without a limit gets an error, the next can ask."""
    monkeypatch.setattr("greenline.postgres.control.ON_CONNECT_TIMEOUT_S", 0.5)
    slot_table = opened(4, 2)
    opener = partial(connect, through(proxy), 5.0)
    control = controlled(slot_table, opener, on_connect=read_facts)
    proxy.hold(b"max_connections")
    with gevent.Timeout(3), pytest.raises(StoreDown, match=r"no answer within 0\.5 s"):
        control.renew()
    with gevent.Timeout(3), pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        control.renew()
    proxy.pass_on()
    assert control.ask(lambda conn: conn.pid)
    wait_until(lambda: slot_table.stats()["held"] == 1, "the slots of those to be free")
