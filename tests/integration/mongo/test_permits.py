"""Permits and the exchange of clients: several "workers" of one host in this process."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

from greenline.budget.plan import MONGODB_EXCHANGE, MONGODB_EXTRA_A_WORKER, MONGODB_OVERHEAD
from greenline.errors import PoolTimeout, StoreDown
from greenline.mongo.client import Mongo, server_of
from greenline.mongo.options import MIN_POOL_SIZE
from greenline.mongo.permits import Permits
from greenline.slots import SlotTable
from tests.helpers.connections import drivers_threads
from tests.helpers.proxy import Proxy
from tests.helpers.support import CHECKOUT, wait_until

SHARE = 20
FLOOR = MONGODB_EXTRA_A_WORKER + 1
FULL = MONGODB_EXTRA_A_WORKER + SHARE
EXCHANGE = sum(MONGODB_EXCHANGE.values())
# One worker, another generation's least, and the room for an exchange.
HOST = FULL + FLOOR + EXCHANGE

Worker = Callable[..., Mongo]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@pytest.fixture
def slot_tables(path: Path) -> Iterator[Callable[..., SlotTable]]:
    """Makes a worker's part in the one slot table."""

    def make(capacity: int = HOST, reserved: int = 2 * FLOOR) -> SlotTable:
        slot_table = SlotTable(path, floor=FLOOR)
        slot_table.resize(capacity, reserved)
        stack.callback(slot_table.close)
        return slot_table

    with ExitStack() as stack:
        yield make


@pytest.fixture
def worker(
    slot_tables: Callable[..., SlotTable], empty_mongo: str, mongo_proxy: Proxy
) -> Iterator[Worker]:
    """Makes a worker's client behind the proxy, with its part in the slot table."""
    name = empty_mongo.rpartition("/")[2]

    def make(*in_uri: str, timeout_s: float = 5.0, **of_slot_table: int) -> Mongo:
        query = "&".join(("directConnection=true", *in_uri))
        uri = f"mongodb://127.0.0.1:{mongo_proxy.port}/{name}?{query}"
        slot_table = slot_tables(**of_slot_table)
        made = Mongo(uri, size_for=lambda _: SHARE, timeout_s=timeout_s, slot_table=slot_table)
        stack.callback(made.close)
        return made

    with ExitStack() as stack:
        yield make
        mongo_proxy.pass_on()


def size_of(mongo: Mongo) -> int:
    with mongo.database() as database:
        return int(database.client.options.pool_options.max_pool_size)


def test_a_new_generation_is_ready_with_one_connection_and_grows_when_the_old_is_gone(
    worker: Worker, mongo_proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """It says both in the log, and never more is open than the host may have."""
    caplog.set_level("DEBUG", "greenline.mongo.clients")
    old = worker()
    old.check()
    assert size_of(old) == SHARE
    new = worker()
    new.check()
    assert size_of(new) == 1
    old.close()
    wait_until(lambda: size_of(new) == SHARE, "the whole share")
    assert mongo_proxy.most <= HOST
    assert [record.getMessage() for record in caplog.records] == [
        f"mongodb pool: {SHARE} connections",
        "mongodb pool: 1 connection until the old workers are gone",
        f"mongodb pool: {SHARE} connections",
    ]


def test_work_on_the_old_client_is_not_interrupted(
    worker: Worker, slot_tables: Callable[..., SlotTable], mongo_proxy: Proxy
) -> None:
    """A block and a question that began before the exchange end after it, and then it is closed."""
    old, new, outside = worker(), worker(), slot_tables()
    old.check()
    new.check()
    with new.database() as database:
        database.things.insert_one({"_id": 1})
        small = database.client
        mongo_proxy.hold(b"things")
        asking = gevent.spawn(new.read, lambda database: database.things.find_one({"_id": 1}))
        wait_until(lambda: mongo_proxy.held == 1, "a question without an answer")
        old.close()
        wait_until(lambda: size_of(new) == SHARE, "the whole share")
        assert outside.stats()["held_by_all"] == FULL + EXCHANGE
        mongo_proxy.pass_on()
        assert asking.get(timeout=40) == {"_id": 1}
        assert database.things.find_one({"_id": 1}) == {"_id": 1}
        assert small.options.pool_options.max_pool_size == 1
    wait_until(lambda: outside.stats()["held_by_all"] == FULL, "the permits of the old one")
    assert mongo_proxy.most <= HOST


def test_an_exchange_leaves_no_socket_and_no_monitor_behind(
    worker: Worker, mongo_proxy: Proxy
) -> None:
    """Afterwards there is just what a worker has that began with its whole share."""
    others = drivers_threads()  # of the clients of earlier tests
    direct = worker()
    direct.check()
    # The monitors that measure round trips come later than the others.
    sockets = MIN_POOL_SIZE + MONGODB_EXTRA_A_WORKER
    wait_until(lambda: mongo_proxy.open == sockets, "a warm pool and all monitors")
    count = len(drivers_threads() - others)
    waits = worker()
    waits.check()
    direct.close()
    wait_until(lambda: size_of(waits) == SHARE, "the whole share")
    wait_until(lambda: len(drivers_threads() - others) == count, "the monitors to end")
    wait_until(lambda: mongo_proxy.open == sockets, "the sockets to be closed")
    waits.close()
    wait_until(lambda: not drivers_threads() - others, "all monitors to end")
    wait_until(lambda: mongo_proxy.open == 0, "all sockets to be closed")


def test_close_gives_the_permits_back_at_once(
    worker: Worker, slot_tables: Callable[..., SlotTable]
) -> None:
    """They need no reaper, unlike after a kill."""
    outside = slot_tables()
    one = worker()
    one.check()
    assert outside.stats()["held_by_all"] == FULL
    one.close()
    assert outside.stats()["held_by_all"] == 0


def test_a_worker_without_permits_connects_to_nothing_and_says_why(
    worker: Worker, slot_tables: Callable[..., SlotTable], mongo_proxy: Proxy
) -> None:
    """It is not ready, requests wait for a limited time, and go on when there is room."""
    most, more = Permits(slot_tables()), Permits(slot_tables())
    assert most.take(HOST - FLOOR)
    assert more.take(1)
    late = worker(timeout_s=0.2)
    with pytest.raises(PoolTimeout, match="others hold all"):
        late.check()
    with pytest.raises(PoolTimeout, match="others hold all"), late.database():
        raise AssertionError
    assert mongo_proxy.accepted == 0
    more.keep(0)
    late.check()
    assert size_of(late) == 1
    most.keep(0)
    wait_until(lambda: size_of(late) == SHARE, "the whole share")


def test_while_the_server_is_away_the_old_client_stays(worker: Worker, mongo_proxy: Proxy) -> None:
    """The exchange is tried again until it succeeds, and holds nothing in between."""
    old, new = worker(), worker()
    old.check()
    new.check()
    mongo_proxy.refuse()
    old.close()
    gevent.sleep(2.5)
    with pytest.raises(StoreDown):
        new.check()
    mongo_proxy.pass_on()
    wait_until(lambda: size_of(new) == SHARE, "the whole share")
    new.check()
    assert mongo_proxy.most <= HOST


def test_a_pool_size_in_the_uri_is_kept_and_counted(
    worker: Worker, slot_tables: Callable[..., SlotTable], caplog: pytest.LogCaptureFixture
) -> None:
    """The second generation has it at once, with a warning, and counts it when there is room."""
    outside = slot_tables()
    old, new = (worker(f"maxPoolSize={SHARE + 2}") for _ in range(2))
    old.check()
    assert outside.stats()["held_by_all"] == FULL + 2
    assert not caplog.records
    new.check()
    assert size_of(new) == SHARE + 2
    assert outside.stats()["held_by_all"] == FULL + 2 + FLOOR
    assert [record.getMessage() for record in caplog.records] == [
        "mongodb pool: maxPoolSize in MONGODB_URI is not ours to change: this worker may connect "
        f"{FULL + 2} times, {FULL + 2 - FLOOR} times more than it should now"
    ]
    with new.database() as database:
        before = database.client
    old.close()
    wait_until(lambda: outside.stats()["held_by_all"] == FULL + 2, "its permits")
    with new.database() as database:
        assert database.client is before


def test_a_pool_without_a_limit_is_warned_of(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """maxPoolSize=0 is pymongo's word for it: it cannot be counted, and is not ours to change."""
    one = worker("maxPoolSize=0")
    one.check()
    assert [record.getMessage() for record in caplog.records] == [
        "mongodb pool: maxPoolSize in MONGODB_URI is unlimited, the server is not"
    ]


def test_permits_are_taken_together_or_not_at_all(slot_tables: Callable[..., SlotTable]) -> None:
    """Who does not get all holds what it held before, and leaves the rest to others."""
    one, two, three = (Permits(slot_tables(100, 0)) for _ in range(3))
    assert one.take(60)
    assert not two.take(50)
    assert two.held == 0
    assert three.take(40)
    one.keep(10)
    assert two.take(50)
    assert [one.held, two.held, three.held] == [10, 50, 40]


# Each takes all but a little of what there is, so that no two can have it at once.
RIVAL = """
import random, sys, time
from pathlib import Path
from greenline.slots import SlotTable
from greenline.mongo.permits import Permits

slot_table = SlotTable(Path(sys.argv[1]))
slot_table.resize(100)
permits = Permits(slot_table)
for _ in range(int(sys.argv[2])):
    while not permits.take(90):
        time.sleep(random.uniform(0.001, 0.005))
    permits.keep(0)
print("done")
"""


def test_rivals_do_not_wait_for_each_other_for_ever(path: Path) -> None:
    """Four processes of which each wants nine tenths all get their turn, two hundred times."""
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", RIVAL, str(path), "200"], cwd=CHECKOUT, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    assert [rival.communicate(timeout=60)[0] for rival in rivals] == [b"done\n"] * 4


HOLDER = """
import sys, time
from pathlib import Path
from greenline.slots import SlotTable
from greenline.mongo.permits import Permits

slot_table = SlotTable(Path(sys.argv[1]))
slot_table.resize(int(sys.argv[2]))
print(Permits(slot_table).take(int(sys.argv[2])), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_what_a_killed_worker_left_is_free_a_moment_later(
    worker: Worker, path: Path, kill: signal.Signals
) -> None:
    """But what a stopped one holds is its own: its sockets are still there."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(HOST)], cwd=CHECKOUT, stdout=subprocess.PIPE
    )
    assert holder.stdout
    assert holder.stdout.readline() == b"True\n"
    os.kill(holder.pid, kill)
    late = worker(timeout_s=5.0)
    if kill == signal.SIGSTOP:
        with pytest.raises(PoolTimeout), late.database():
            raise AssertionError
        holder.kill()
    wait_until(lambda: size_of(late) == SHARE, "the whole share")
    holder.communicate(timeout=60)


def test_many_generations_in_a_row_never_exceed_the_host(
    worker: Worker, mongo_proxy: Proxy
) -> None:
    """Each begins beside the one before it, with clients that ask all the time."""
    is_over = Event()
    failures: list[Exception] = []
    busy: Counter[Mongo] = Counter()
    serving = [worker()]

    def ask() -> None:
        while not is_over.is_set():
            mongo = serving[-1]
            busy[mongo] += 1
            try:
                mongo.read(lambda database: database.things.find_one({"_id": 1}))
            except Exception as error:
                failures.append(error)
            busy[mongo] -= 1

    serving[0].check()
    asking = [gevent.spawn(ask) for _ in range(40)]
    for _ in range(5):
        new = worker()
        new.check()
        assert size_of(new) == 1
        old = serving[-1]
        serving.append(new)
        wait_until(lambda old=old: not busy[old], "the old one's work to end")
        old.close()
        wait_until(lambda new=new: size_of(new) == SHARE, "the whole share")
    is_over.set()
    gevent.joinall(asking, timeout=40, raise_error=True)
    assert failures == []
    assert FULL - 10 < mongo_proxy.most <= HOST


@pytest.mark.parametrize(
    ("uri", "key"),
    [
        ("mongodb://me:secret@B:27018,a/d?x=1", "mongodb://a,b:27018"),
        ("mongodb+srv://db.example/", "mongodb+srv://db.example"),
    ],
)
def test_the_slot_tables_key_is_the_servers_alone(uri: str, key: str) -> None:
    """Neither a password nor an order of the hosts tells one deployment from another."""
    assert server_of(uri) == key


def test_the_permits_of_a_worker_are_those_of_the_budget() -> None:
    """What is beside the pool, by name: a new one is noticed here."""
    assert MONGODB_OVERHEAD == {"readiness": 1, "monitors": 4}
    assert MONGODB_EXCHANGE == {"old pool": 1, "its monitors": 2}
