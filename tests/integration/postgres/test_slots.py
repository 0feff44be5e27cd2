"""Pools that share the host's connection slots: never more than there are, and to each its turn."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import gevent
import pytest
from sqlalchemy import create_engine, text

from embedded.postgres import Postgres, temporary
from greenline.errors import GreenlineError, PoolTimeout, StoreError
from greenline.postgres.connect import connect
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.creator import creator
from greenline.postgres.limits import read_facts
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.reaper import Reaper
from greenline.slots import SlotTable
from tests.helpers.pools import Busy, Watch, limited, run
from tests.helpers.support import CHECKOUT, wait_until

Worker = Callable[..., tuple[ConnectionPool, SlotTable]]


@pytest.fixture
def url(watch: Watch) -> str:
    """Six connections at most: a seventh is refused by the server."""
    return f"{limited(watch, 6)}&application_name={watch.name}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@pytest.fixture
def worker(path: Path, url: str) -> Iterator[Worker]:
    """Makes a worker's pool, with its slot table on the shared file; a slot is kept for each."""

    def make(
        capacity: int = 6, reserved: int = 2, **options: object
    ) -> tuple[ConnectionPool, SlotTable]:
        slot_table = SlotTable(path)
        slot_table.resize(capacity, reserved)
        opener = partial(connect, url, 5.0)
        pool = ConnectionPool(opener, max_size=100, slot_table=slot_table, **options)  # type: ignore[arg-type]
        stack.callback(slot_table.close)
        stack.callback(pool.close, 2.0)
        return pool, slot_table

    with ExitStack() as stack:
        yield make


def test_workers_together_never_exceed_the_host(worker: Worker) -> None:
    """Each would take all; the server, which allows just the host's connections, refuses none."""
    pools = [worker()[0] for _ in range(3)]
    with ExitStack() as stack:
        for pool in pools:
            stack.enter_context(Busy(pool, hold_s=0.01))
        wait_until(lambda: all(pool.stats()["size"] for pool in pools), "a connection for each")
        gevent.sleep(2)
        assert sum(pool.stats()["size"] for pool in pools) <= 6


def test_who_waits_is_given_what_lies_idle(worker: Worker) -> None:
    """A busy worker gets all but the last connection of an idle one."""
    (idle, _), (busy, _) = worker(), worker()
    with Busy(idle):
        wait_until(lambda: idle.stats()["size"] == 5, "one to have all but the other's")
    with Busy(busy):
        wait_until(lambda: (idle.stats()["size"], busy.stats()["size"]) == (1, 5), "the move")


def test_two_busy_workers_come_to_the_same(worker: Worker) -> None:
    """The one that took all gives them as they come back, until both have three."""
    (first, _), (second, _) = worker(), worker()
    with Busy(first):
        wait_until(lambda: first.stats()["size"] == 5, "one to have all but the other's")
        with Busy(second):
            wait_until(lambda: (first.stats()["size"], second.stats()["size"]) == (3, 3), "halves")


def test_a_budget_that_shrinks_is_followed(worker: Worker, watch: Watch) -> None:
    """Busy and idle connections beyond it go; later they may come back."""
    pool, slot_table = worker(reserved=0)
    with Busy(pool):
        wait_until(lambda: watch.count() == 6, "all six")
        slot_table.resize(3)
        wait_until(lambda: watch.count() == 3, "three to go")
        slot_table.resize(6)
        wait_until(lambda: watch.count() == 6, "all six again")
    slot_table.resize(2)
    wait_until(lambda: watch.count() == 2, "the idle ones to go")


def test_a_worker_without_a_slot_waits_for_one_and_is_notified(worker: Worker) -> None:
    """A worker that has none waits as for a busy pool."""
    _, slot_table = worker(capacity=1, reserved=0)
    slot = slot_table.take()
    assert slot is not None
    pool, _ = worker(capacity=1, reserved=0, timeout_s=0.3)
    with pytest.raises(PoolTimeout, match="no connection became free"):
        run(pool, "select 1")
    pool, _ = worker(capacity=1, reserved=0)  # its timeout would be that of the connect as well
    waiting = gevent.spawn(run, pool, "select 7")
    gevent.sleep(0)
    slot_table.give(slot)
    assert waiting.get(timeout=40) == 7


def test_another_librarys_pool_draws_from_the_same_slots(
    worker: Worker, url: str, watch: Watch
) -> None:
    """SQLAlchemy's engine beside ours: what it closes is ours again."""
    pool, slot_table = worker(capacity=2, reserved=2)
    engine = create_engine(
        "postgresql+psycopg2://",
        creator=creator(partial(connect, url, 5.0), slot_table, timeout_s=0.3),
        pool_size=1, max_overflow=5,
    )  # fmt: skip
    slot_table.resize(1, 0)
    with engine.connect() as conn:
        assert conn.execute(text("select 7")).scalar() == 7
        with pytest.raises(PoolTimeout):
            engine.connect()
        with pytest.raises(PoolTimeout), gevent.Timeout(0.5, PoolTimeout()):
            run(pool, "select 1")
    engine.dispose()
    assert run(pool, "select 8") == 8
    assert watch.count() == 1


HOLDER = """
import sys
from greenline.patch import hook_psycopg2, patch_all
patch_all()
hook_psycopg2()
from functools import partial
from pathlib import Path
import gevent
from greenline.slots import SlotTable
from greenline.postgres.connect import connect
from greenline.postgres.pool import ConnectionPool

slot_table = SlotTable(Path(sys.argv[1]))
slot_table.resize(6)
pool = ConnectionPool(partial(connect, sys.argv[2], 5.0), max_size=6, slot_table=slot_table)

def hold():
    with pool.connection() as conn, conn.cursor() as cursor:
        cursor.execute(sys.argv[3])

gevent.joinall([gevent.spawn(hold) for _ in range(6)])
"""


def test_the_slots_of_a_killed_worker_are_closed_until_its_backends_are_gone(
    worker: Worker, path: Path, url: str, watch: Watch, postgres: Postgres
) -> None:
    """A backend in mid-statement outlives its worker; no other connects in its place."""
    # In PL/pgSQL nothing looks at the client for a while, and the statement timeout is ours.
    spin = "do $$ begin while clock_timestamp() < now() + '4 s' loop null; end loop; end $$"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), url, spin], cwd=CHECKOUT, env=os.environ
    )
    wait_until(lambda: watch.count("state = 'active'") == 6, "six to be busy")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    pool, slot_table = worker(reserved=0)
    control = Control(partial(connect, postgres.url, 5.0))
    reaper = Reaper(slot_table, control)
    reaper.start()
    # The server refuses a seventh connection.
    asked = [gevent.spawn(run, pool, "select 7") for _ in range(6)]
    gevent.sleep(0)
    assert watch.count() == 6
    assert [one.get() for one in asked] == [7] * 6
    reaper.close()
    control.close()


def test_when_all_were_killed_somebody_can_ask_again(
    path: Path, url: str, watch: Watch, postgres: Postgres
) -> None:
    """No slot is left for the control connection: it takes the one beside, and frees the others."""
    dead = SlotTable(path)
    dead.resize(4, 4)
    for for_control in (True, False):
        slot = dead.take(for_control=for_control)
        assert slot is not None
        slot.hold(99_999_000)
    dead._file.close()  # as the kernel does
    slot_table = SlotTable(path)
    slot_table.resize(2, 2)
    assert slot_table.take() is None
    control = Control(partial(connect, url, 5.0), slot_table=slot_table)
    reaper = Reaper(slot_table, control)
    reaper.start()
    wait_until(lambda: watch.count() == 1, "the control connection")
    wait_until(lambda: slot_table.stats()["free"] == 1, "the others, one of them for it")
    assert slot_table.stats()["orphans"] == 0
    reaper.close()
    control.close()
    slot_table.close()


def test_a_control_connection_that_the_server_ended_is_made_anew(
    path: Path, url: str, watch: Watch
) -> None:
    """The budget is read again with each new one."""
    slot_table, read = SlotTable(path), []
    slot_table.resize(2, 2)
    control = Control(
        partial(connect, url, 5.0),
        slot_table=slot_table,
        on_connect=lambda conn: read.append(conn.pid),
    )
    reaper = Reaper(slot_table, control)
    reaper.start()
    wait_until(lambda: len(read) == 1, "the first")
    watch.ask("select pg_terminate_backend(pid) from pg_stat_activity where pid = %s", read[0])
    wait_until(lambda: len(read) == 2, "the second")
    assert slot_table.stats()["held"] == 1
    with pytest.raises(StoreError):
        control.ask(lambda conn: conn.cursor().execute("select from nowhere"))
    reaper.close()
    control.close()
    slot_table.close()


def test_a_restart_loses_no_slot_and_what_it_changed_is_read_first(
    path: Path, tmp_path: Path
) -> None:
    """All its slots are free at once for the pool, which connects when the new limit is known."""
    sockets = tmp_path / "sockets"
    with temporary(30) as server:
        sockets.symlink_to(Path(server.socket).parent)
        url = server.url.replace(str(Path(server.socket).parent), str(sockets))
        opener = partial(connect, url, 5.0)
        slot_table = SlotTable(path)

        def follow(conn: Connection) -> None:
            facts = read_facts(conn)
            slot_table.resize(facts.max_connections - 5, 2)

        control = Control(opener, slot_table=slot_table, on_connect=follow)
        pool = ConnectionPool(opener, max_size=100, control=control, slot_table=slot_table)
        reaper = Reaper(slot_table, control)
        reaper.start()
        errors: list[GreenlineError] = []
        is_over = False

        def ask() -> None:
            while not is_over:
                try:
                    run(pool, "select pg_sleep(0.02)")
                except GreenlineError as error:
                    errors.append(error)
                    gevent.sleep(0.02)

        asking = [gevent.spawn(ask) for _ in range(60)]
        for allowed in (30, 12, 30):
            wait_until(lambda: pool.stats()["size"] == allowed - 6, "all there are")  # noqa: B023
            server.kill()
            sockets.unlink()
            server.max_connections = {30: 12, 12: 30}[allowed]
            server.start()
            sockets.symlink_to(Path(server.socket).parent)
        wait_until(lambda: pool.stats()["size"] == 6, "all there are")
        assert [error for error in errors if "too many" in str(error)] == []
        is_over = True
        gevent.joinall(asking, timeout=40, raise_error=True)
        reaper.close()
        pool.close(2.0)
        control.close()
        slot_table.close()
