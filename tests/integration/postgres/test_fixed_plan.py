"""Workers of a host, where the number of hosts is set: all follow what one of them has read."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import gevent
import pytest
from gevent.event import Event
from psycopg2.extensions import parse_dsn

from greenline.budget.plan import COMMANDS, Deployment, Plan, PostgresFacts, postgres_plan
from greenline.postgres.connect import connect
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.fixed_plan import FixedPlan
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.reaper import Reaper
from greenline.slots import SlotTable
from tests.helpers.pools import Watch, limited
from tests.helpers.support import wait_until


class Worker:
    """A worker of the host at *path*, joined as the service joins it."""

    def __init__(
        self, path: Path, connect: Callable[..., Connection], workers: int = 2, hosts: int = 1
    ) -> None:
        self.deployment = Deployment(workers, hosts, surge_hosts=0)
        self.plan: Plan | None = None
        self.reads = 0
        self.slot_table = SlotTable(path)
        self.plan_reader = FixedPlan(
            self.slot_table,
            min_connections=2 * workers,
            plan_for=self._plan_for,
            follow=self._follow,
        )
        self.control = Control(
            connect, slot_table=self.slot_table, on_connect=self.plan_reader.read
        )
        self.pool = ConnectionPool(
            connect, max_size=1, control=self.control, slot_table=self.slot_table
        )
        self.reaper = Reaper(
            self.slot_table, self.control, partial(self.plan_reader.look, self.control)
        )

    def _plan_for(self, facts: PostgresFacts) -> Plan:
        self.reads += 1
        return postgres_plan(facts, self.deployment)

    def _follow(self, plan: Plan) -> None:
        self.plan = plan
        self.pool.resize(plan.max_pool_size)

    def pid(self) -> int:
        """Return the backend's pid of the control connection."""
        return self.control.ask(lambda conn: conn.pid)

    def follows(self, host: int) -> bool:
        """Return whether slot table and pool have what *host* connections come to."""
        most = 0 if self.plan is None else self.plan.max_pool_size
        sizes = (self.slot_table.capacity, self.pool.stats()["max"])
        return self.plan is not None and self.plan.host == host and sizes == (host, most)

    def close(self) -> None:
        self.pool.close(2.0)
        self.reaper.close()
        self.control.close()
        self.slot_table.close()


Make = Callable[..., Worker]


@pytest.fixture
def url(watch: Watch) -> str:
    """Of a role that may have twenty connections, and a command."""
    return f"{limited(watch, 20 + COMMANDS)}&application_name={watch.name}"


@pytest.fixture
def make(url: str, tmp_path: Path) -> Iterator[Make]:
    """Makes workers of one host."""

    def make(**options: int) -> Worker:
        worker = Worker(tmp_path / "slots", partial(connect, url, 5.0), **options)
        stack.callback(worker.close)
        return worker

    with ExitStack() as stack:
        yield make


def allow(watch: Watch, url: str, most: int) -> None:
    """Let the role of *url* have *most* connections, and a command."""
    watch.ask(f"alter role {parse_dsn(url)['user']} connection limit {most + COMMANDS}; select 1")


def hold(pool: ConnectionPool, until: Event) -> None:
    """Take a connection until the event is set."""
    with pool.connection():
        until.wait()


def read_anew(worker: Worker, watch: Watch) -> None:
    """End the control connection of *worker*, so that it reads what the server allows."""
    watch.ask("select pg_terminate_backend(%s, 5000)", worker.pid())
    worker.control.renew()


def test_what_one_worker_reads_anew_the_others_follow(make: Make, watch: Watch, url: str) -> None:
    """Up and down, over the control connection that they have; the server refuses no connection."""
    one, other = make(), make()
    for worker in (one, other):
        worker.reaper.start()
    wait_until(lambda: one.follows(20) and other.follows(20), "both to have read")
    pid = other.pid()
    for most in (30, 12):
        allow(watch, url, most)
        read_anew(one, watch)
        wait_until(lambda: other.follows(most), f"the other worker to follow {most}")  # noqa: B023
        assert one.follows(most)
        has_all = Event()
        asked = [gevent.spawn(hold, other.pool, has_all) for _ in range(40)]
        wait_until(lambda: other.pool.stats()["size"] == most - 7, "all that are shared")  # noqa: B023
        has_all.set()
        gevent.joinall(asked, timeout=40, raise_error=True)
        other.pool.evict()  # a server that has more than it may have refuses who would read
        wait_until(lambda: other.pool.stats()["size"] == 0, "its connections to be gone")
    assert other.pid() == pid


def test_generations_with_different_settings_do_not_answer_each_other(make: Make) -> None:
    """Each reads the other's plan once, and does not read it again."""
    old, new = make(hosts=1), make(hosts=2)
    for worker in (old, new):
        worker.control.renew()
    for _ in range(3):
        old.plan_reader.look(old.control)
        new.plan_reader.look(new.control)
    assert (old.reads, new.reads) == (2, 1)
    assert old.follows(20)
    assert new.follows(10)


def test_a_worker_that_begins_uses_the_plan_in_the_slot_table(make: Make) -> None:
    """Before it has read anything itself; the first of all has what is needed to ask."""
    first = make()
    assert first.slot_table.capacity == 4
    first.control.renew()
    assert make().slot_table.capacity == 20


def test_what_fits_another_worker_and_not_us_is_logged_once(
    make: Make, watch: Watch, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What this worker has it keeps."""
    few, many = make(workers=2), make(workers=8)
    for worker in (few, many):
        worker.control.renew()
    allow(watch, url, 12)
    read_anew(few, watch)
    for _ in range(3):
        many.plan_reader.look(many.control)
    (record,) = caplog.records
    assert record.message.startswith("8 workers a host need 16 connections")
    assert many.follows(20)
