"""
A peer that vanishes without a reset: its packets are dropped, and so are ours to it.

Not what a deaf proxy is, whose kernel still acknowledges what it gets.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import psycopg2
import pytest
from pymongo.database import Database

from embedded.mongo import Mongo as MongoServer
from embedded.postgres import Postgres
from greenline.errors import DeadlineExceeded, StoreDown
from greenline.hub import deadline
from greenline.mongo.client import Mongo
from greenline.postgres.connect import connect
from greenline.postgres.pool import ConnectionPool
from tests.helpers.network import Network, Unavailable, private
from tests.helpers.pools import Watch, a_thousand_go_on, run, through
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until

SLACK_S = 1.0


@pytest.fixture
def network(postgres: Postgres) -> Iterator[Network]:
    """A network of the test's own; Postgres is reached over its unix socket, as ever."""
    try:
        with private() as network:
            yield network
    except Unavailable as reason:
        pytest.skip(f"no network to lose a peer in: {reason}")


@pytest.fixture
def proxy(network: Network, postgres: Postgres) -> Iterator[Proxy]:
    """The peer that can vanish: a proxy before Postgres, in that network."""
    with Proxy(postgres.socket) as between:
        yield between
        network.pass_on()


@pytest.fixture
def pool(proxy: Proxy) -> Iterator[ConnectionPool]:
    """A pool of one, whose connection is there and idle."""
    made = ConnectionPool(partial(connect, through(proxy), 5.0), max_size=1)
    run(made, "select 1")
    yield made
    made.close(2.0)


def test_the_deadline_ends_a_statement_and_the_pool_recovers(
    pool: ConnectionPool, proxy: Proxy, network: Network
) -> None:
    """The caller gets an error in time, a thousand others go on, and the slot becomes free."""
    with a_thousand_go_on():
        network.drop(proxy.port)
        started = monotonic()
        with pytest.raises(DeadlineExceeded), deadline.limit(0.5):
            run(pool, "select 1")
        assert monotonic() - started < 0.5 + SLACK_S
    wait_until(lambda: pool.stats()["size"] == 0, "its slot to be free")
    network.pass_on()
    assert run(pool, "select 7") == 7


def test_a_connect_ends_at_its_own_limit(proxy: Proxy, network: Network) -> None:
    """The first packet gets no answer."""
    network.drop(proxy.port)
    started = monotonic()
    with pytest.raises(StoreDown):
        connect(through(proxy), 0.5)
    assert monotonic() - started < 0.5 + SLACK_S


@pytest.mark.parametrize(
    ("statement", "option"),
    [
        ("select 1", "tcp_user_timeout=1000"),
        ("select pg_sleep(60)", "tcp_user_timeout=1000&keepalives_idle=1&keepalives_interval=1"),
    ],
    ids=["what we say is not acknowledged", "we only listen"],
)
def test_without_a_deadline_the_kernel_notices(
    proxy: Proxy, network: Network, watch: Watch, statement: str, option: str
) -> None:
    """
    A script does not hang for a quarter of an hour; here with limits shorter than ours.

    With TCP_USER_TIMEOUT it is that, and not the count of probes, that ends the silence.
    """
    conn = connect(f"{through(proxy)}&application_name={watch.name}&{option}", 5.0)
    conn.autocommit = True

    def vanish_while_it_runs() -> None:
        wait_until(lambda: watch.count("state = 'active'"), "the statement to run")
        network.drop(proxy.port)

    if statement == "select 1":
        network.drop(proxy.port)
        vanishing = None
    else:
        vanishing = gevent.spawn(vanish_while_it_runs)
    with gevent.Timeout(15), pytest.raises(psycopg2.OperationalError):
        conn.cursor().execute(statement)
    assert vanishing is None or vanishing.successful()
    conn.close()


def test_every_connection_has_these_limits(postgres: Postgres) -> None:
    """20 s for what is not acknowledged; after 10 s of silence a probe each 3 s."""
    with Proxy(postgres.socket) as between, closing(connect(through(between), 5.0)) as conn:
        with socket.socket(fileno=os.dup(conn.fileno())) as seen:
            option = partial(seen.getsockopt, socket.IPPROTO_TCP)
            assert option(socket.TCP_USER_TIMEOUT) == 20_000
            assert option(socket.TCP_KEEPIDLE) == 10
            assert (option(socket.TCP_KEEPCNT), option(socket.TCP_KEEPINTVL)) == (3, 3)
            assert seen.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_a_vanished_mongodb_costs_no_more_than_the_deadline(network: Network, folder: Path) -> None:
    """Each caller gets an error in time, and new connections serve it when the server is back."""

    def first(database: "Database[dict[str, Any]]") -> dict[str, Any] | None:
        return database.things.find_one({"_id": 1})

    with MongoServer(folder / "vanished") as server:
        uri = f"mongodb://127.0.0.1:{server.port}/test?directConnection=true"
        client = Mongo(uri, size_for=lambda _: 5, timeout_s=5)
        client.insert("things", {"_id": 1})
        network.drop(server.port)
        for _ in range(3):
            started = monotonic()
            with pytest.raises((DeadlineExceeded, StoreDown)), deadline.limit(0.5):
                client.read(first)
            assert monotonic() - started < 0.5 + SLACK_S
        network.pass_on()
        wait_until(lambda: found(client, first), "an answer")
        client.close()


def found(client: Mongo, work: Callable[["Database[dict[str, Any]]"], Any]) -> bool:
    try:
        with deadline.limit(2):
            return bool(client.read(work) == {"_id": 1})
    except (DeadlineExceeded, StoreDown):
        return False
