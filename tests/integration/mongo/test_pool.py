"""greenline.mongo's connections: never too many, none lost, none left behind."""

import gc
import logging
import os
import random
import re
from time import monotonic
from typing import Any

import gevent
import pytest

from embedded.mongo import Mongo as Server
from greenline.budget.plan import MONGODB_EXTRA_A_WORKER
from greenline.mongo.limits import read_max_connections
from greenline.mongo.options import MIN_POOL_SIZE
from tests.helpers.connections import drivers_threads
from tests.helpers.proxy import Proxy
from tests.helpers.support import IS_LONG, wait_until
from tests.integration.conftest import Connect, First, first_by_command, first_by_cursor

# A longer form yet: KILL_ROUNDS=100000 make test ARGS="-k killed"
KILL_ROUNDS = int(os.environ.get("KILL_ROUNDS", "10000" if IS_LONG else "5000"))
AT_ONCE = 20


def test_the_connections_beside_the_pool_are_those_of_the_budget(
    connect: Connect, mongo: Server, mongo_proxy: Proxy, first: First
) -> None:
    """A readiness connection, and the monitors of two clients: counted where they arrive."""
    client = connect(1)
    client.check()
    assert client.read(first) is None
    wait_until(lambda: mongo_proxy.open == 1 + MONGODB_EXTRA_A_WORKER, "all the connections")
    assert mongo_proxy.most <= 1 + MONGODB_EXTRA_A_WORKER


def test_a_cold_burst_stays_within_the_pool(
    connect: Connect, mongo: Server, mongo_proxy: Proxy, first: First
) -> None:
    """Five hundred greenlets at once on a client without a connection share ten, and all work."""
    client = connect(10)
    with client.database() as database:
        database.things.insert_one({"_id": 1})
    asking = [gevent.spawn(client.read, first) for _ in range(500)]
    gevent.joinall(asking, timeout=40, raise_error=True)
    assert [greenlet.value for greenlet in asking] == [{"_id": 1}] * 500
    assert 1 + MONGODB_EXTRA_A_WORKER < mongo_proxy.most <= 10 + MONGODB_EXTRA_A_WORKER


def test_a_checked_client_is_warm(
    connect: Connect, mongo: Server, mongo_proxy: Proxy, first: First
) -> None:
    """What readiness waits for includes minPoolSize connections, which are there at once."""
    client = connect(20)
    client.check()
    assert mongo_proxy.open >= MIN_POOL_SIZE + 2
    accepted = mongo_proxy.accepted
    asking = [gevent.spawn(client.read, first) for _ in range(MIN_POOL_SIZE)]
    gevent.joinall(asking, timeout=40, raise_error=True)
    assert mongo_proxy.accepted - accepted <= MONGODB_EXTRA_A_WORKER - 2  # monitors that came late


def test_stats_tell_who_holds_a_connection_and_who_waits(
    connect: Connect, mongo_proxy: Proxy
) -> None:
    """Three of five have one, two wait; afterwards all are idle, and closed there are none."""
    client = connect(3)
    assert client.stats() == {"size": 0, "active": 0, "idle": 0, "waiting": 0}
    client.check()
    assert client.stats() == {"size": 3, "active": 0, "idle": 3, "waiting": 0}
    mongo_proxy.hold(b"held")
    holding = [
        gevent.spawn(client.read, lambda database: database.held.find_one({})) for _ in range(5)
    ]
    wait_until(lambda: mongo_proxy.held == 3, "the whole pool to be in use")
    assert client.stats() == {"size": 3, "active": 3, "idle": 0, "waiting": 2}
    mongo_proxy.pass_on()
    gevent.joinall(holding, timeout=40, raise_error=True)
    assert client.stats() == {"size": 3, "active": 0, "idle": 3, "waiting": 0}
    client.close()
    assert client.stats() == {"size": 0, "active": 0, "idle": 0, "waiting": 0}


def test_the_first_requests_ask_the_server_for_its_limit_once(
    connect: Connect, first: First, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the one connection of readiness, where a burst of them would time out."""
    asked: list[Any] = []

    def ask(readiness: Any) -> int:
        asked.append(readiness)
        gevent.sleep(0.1)
        return read_max_connections(readiness)

    monkeypatch.setattr("greenline.mongo.client.read_max_connections", ask)
    client = connect(3)
    reads = [gevent.spawn(client.read, first) for _ in range(40)]
    gevent.joinall(reads, timeout=40, raise_error=True)
    assert len(asked) == 1


def test_what_the_pools_do_is_counted(connect: Connect, mongo_proxy: Proxy, first: First) -> None:
    """Commands that ran, that waited and that failed, and connections made, lost and returned."""
    client = connect(1, "minPoolSize=0")
    assert client.read(first) is None
    made = client.pop_stats()
    assert (made["requests_num"], made["requests_queued"], made["requests_errors"]) == (1, 1, 0)
    assert (made["connections_num"], made["connections_errors"]) == (1, 0)
    assert client.read(first) is None
    again = client.get_stats()
    assert (again["requests_num"], again["requests_queued"], again["connections_num"]) == (1, 0, 0)

    client.pop_stats()
    mongo_proxy.hold(b"held")
    holding = gevent.spawn(client.read, lambda database: database.held.find_one({}))
    wait_until(lambda: mongo_proxy.held == 1, "the connection to be in use")
    waiter = gevent.spawn(client.read, first)
    wait_until(lambda: client.stats()["waiting"] == 1, "a waiter")
    until = monotonic() + 0.06
    wait_until(lambda: monotonic() >= until, "the time that is counted")
    waiter.kill()
    mongo_proxy.pass_on()
    holding.get(timeout=40)
    counted = client.get_stats()
    assert (counted["requests_num"], counted["requests_errors"]) == (2, 1)
    assert counted["requests_wait_ms"] >= 50
    assert counted["usage_ms"] >= 50
    assert counted["returns_bad"] == 0


def test_the_log_names_the_pool(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """Each DEBUG line carries it: growth, checkout, return and close; without DEBUG none."""
    client = connect(1)
    with client.database() as database:
        database.command("ping")
        assert not caplog.messages
        with caplog.at_level(logging.DEBUG, "greenline.mongo"):
            database.command("ping")
            for server in database.client._topology._servers.values():
                server.pool.reset_without_pause()
            database.command("ping")
            client.close()
    events = [re.sub(r"\d+", "N", text.partition(";")[0]) for text in caplog.messages]
    assert events == [
        "mongodb: checked out connection N",
        "mongodb: connection N returned clean after N.N s",
        "mongodb: connecting",
        "mongodb: connected connection N",
        "mongodb: checked out connection N",
        "mongodb: connection N returned clean after N.N s",
        # The driver's endSessions.
        "mongodb: checked out connection N",
        "mongodb: connection N returned clean after N.N s",
        "mongodb pool: closed",
    ]


@pytest.mark.parametrize(
    ("size", "in_uri", "least"),
    [(3, (), 3), (20, ("minPoolSize=2",), 2), (20, ("maxPoolSize=4",), 4)],
    ids=["small pool", "set", "small in the URI"],
)
def test_min_pool_size_fits(
    connect: Connect, size: int, in_uri: tuple[str, ...], least: int
) -> None:
    """It is never above maxPoolSize, which pymongo would refuse, and the URI's own one wins."""
    with connect(size, *in_uri).database() as database:
        assert database.client.options.pool_options.min_pool_size == least


# A greenlet killed while it connects leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_killed_greenlets_neither_lock_nor_leak(
    connect: Connect, mongo: Server, mongo_proxy: Proxy
) -> None:
    """Killed at any moment of an operation, as PYTHON-6074 was found: every slot is still there."""
    size = 3
    client = connect(size)
    client.check()
    chance = random.Random(6074)

    def work(number: int) -> None:
        if number % 4 == 1:
            client.read(first_by_command)
        elif number % 2:
            client.read(first_by_cursor)
        else:
            client.insert("things", {"_id": number, "n": number})

    greenlets: list[gevent.Greenlet[..., None]] = []
    for start in range(0, KILL_ROUNDS, AT_ONCE):
        greenlets = [gevent.spawn(work, 10 + start + n) for n in range(AT_ONCE)]
        for killed in chance.sample(greenlets, AT_ONCE):
            if chance.random() < 0.5:
                gevent.sleep(chance.choice([0, 0.0002, 0.001]))
            killed.kill(block=False)
        gevent.joinall(greenlets, timeout=40, raise_error=False)
        assert all(greenlet.dead for greenlet in greenlets), "a killed greenlet does not end"
        assert all(greenlet.successful() for greenlet in greenlets), "others pay for a kill"
    greenlets.clear()
    gc.collect()
    assert (client.stats()["active"], client.stats()["waiting"]) == (0, 0)

    # The whole pool can be had at once, and no more than that is there.
    mongo_proxy.hold(b"held")
    holding = [
        gevent.spawn(client.read, lambda database: database.held.find_one({}))
        for _ in range(size + 2)
    ]
    wait_until(lambda: mongo_proxy.held == size, "the whole pool to be in use")
    wait_until(
        lambda: mongo_proxy.open <= size + MONGODB_EXTRA_A_WORKER,
        "killed ones to be gone",
        limit_s=10,
    )
    mongo_proxy.pass_on()
    gevent.joinall(holding, timeout=40, raise_error=True)
    assert all(greenlet.dead for greenlet in holding)


@pytest.mark.parametrize("deaf", [False, True], ids=["well", "deaf"])
def test_close_leaves_nothing_behind(connect: Connect, mongo_proxy: Proxy, deaf: bool) -> None:
    """No monitor, no other thread of the driver and no socket, also of a server that hangs."""
    others = drivers_threads()  # of the clients of earlier tests
    client = connect(5)
    client.check()
    # Of two clients: a monitor, and one that tidies up.
    assert len(drivers_threads() - others) >= 4
    if deaf:
        mongo_proxy.deafen()
    client.close()
    wait_until(lambda: not drivers_threads() - others, "the monitors to end")
    mongo_proxy.pass_on()  # a deaf one does not see that it was left
    wait_until(lambda: mongo_proxy.open == 0, "the sockets to be closed")
