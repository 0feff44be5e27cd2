"""greenline.mongo when the server is slow, deaf, away or back: how long, and which error."""

from pathlib import Path
from time import monotonic

import gevent
import pytest
from pymongo.errors import NetworkTimeout, PyMongoError, ServerSelectionTimeoutError

from embedded.mongo import Mongo as Server
from greenline.errors import DeadlineExceeded, PoolTimeout, StoreDown
from greenline.hub import deadline
from greenline.mongo.client import Mongo
from greenline.mongo.retry import OUTAGE_S
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until
from tests.integration.conftest import Connect, First

SLACK_S = 1.0


def find_first(client: Mongo, first: First) -> None:
    """Read without the repetitions of ``read``."""
    with client.database() as database:
        first(database)


def test_a_slow_server_ends_at_the_deadline(
    connect: Connect, mongo_proxy: Proxy, first: First
) -> None:
    """The driver gives up by itself, before the request is interrupted, and says it was slow."""
    client = connect()
    client.read(first)
    mongo_proxy.deafen()
    started = monotonic()
    with deadline.limit(1), pytest.raises(DeadlineExceeded) as caught:
        client.read(first)
    assert 0.9 < monotonic() - started < 1 + SLACK_S
    assert isinstance(caught.value.__cause__, PyMongoError)


def test_after_the_deadline_nothing_is_asked(
    connect: Connect, mongo_proxy: Proxy, first: First
) -> None:
    """No time left is not taken for no limit, as pymongo.timeout(0) would."""
    client = connect()
    client.read(first)
    with deadline.limit(0.05):
        # Not in the hub, which would interrupt this greenlet a quarter of a second later.
        while deadline.remaining():
            pass
        mongo_proxy.hold(b"things")
        with pytest.raises(DeadlineExceeded):
            client.read(first)
        assert mongo_proxy.held == 0


def test_outside_a_request_every_wait_is_finite(connect: Connect) -> None:
    """A script or a thread without a deadline does not hang for ever."""
    with connect(timeout_s=7).database() as database:
        options = database.client.options
    pool = options.pool_options
    assert options.server_selection_timeout == 5
    assert (pool.connect_timeout, pool.socket_timeout, pool.wait_queue_timeout) == (5, 60, 7)
    assert pool.max_connecting == 8


def test_a_deaf_server_is_an_outage_outside_a_request(
    connect: Connect, mongo_proxy: Proxy, first: First
) -> None:
    """socketTimeoutMS ends it, here a short one."""
    client = connect(5, "socketTimeoutMS=1000")
    client.read(first)
    mongo_proxy.deafen()
    started = monotonic()
    with pytest.raises(StoreDown) as caught:
        find_first(client, first)
    assert monotonic() - started < 1 + SLACK_S
    assert isinstance(caught.value.__cause__, NetworkTimeout)


def test_timeout_ms_of_the_uri_is_kept_within_a_request(
    connect: Connect, mongo_proxy: Proxy, first: First
) -> None:
    """A person's own limit is not replaced by a later deadline."""
    client = connect(5, "timeoutMS=1000")
    client.read(first)
    mongo_proxy.deafen()
    started = monotonic()
    with deadline.limit(10), pytest.raises(StoreDown):
        find_first(client, first)
    assert monotonic() - started < 1 + SLACK_S


def test_an_outage_is_reported_long_before_the_deadline(
    connect: Connect, mongo_proxy: Proxy, first: First
) -> None:
    """serverSelectionTimeoutMS holds in pymongo.timeout: a known server that refuses is away."""
    client = connect(5, "serverSelectionTimeoutMS=1000")
    client.read(first)
    mongo_proxy.refuse()
    with deadline.limit(20):
        with pytest.raises(StoreDown):
            find_first(client, first)  # the connection is gone, which the driver did not know
        started = monotonic()
        with pytest.raises(StoreDown) as caught:
            find_first(client, first)
    assert monotonic() - started < 1 + SLACK_S
    assert isinstance(caught.value.__cause__, ServerSelectionTimeoutError)


def test_a_repeated_read_ends_with_the_outage(
    connect: Connect, mongo_proxy: Proxy, first: First
) -> None:
    """Repetitions make an outage no longer than a few seconds, however long a request may take."""
    client = connect()
    client.read(first)
    mongo_proxy.refuse()
    started = monotonic()
    with deadline.limit(20), pytest.raises(StoreDown):
        client.read(first)
    assert monotonic() - started < OUTAGE_S + 2 * SLACK_S


def test_waiting_for_the_pool_keeps_its_own_limit(
    connect: Connect, mongo_proxy: Proxy, first: First
) -> None:
    """waitQueueTimeoutMS holds inside pymongo.timeout: a full pool is reported as one, in time."""
    client = connect(1, timeout_s=0.5)
    client.check()
    mongo_proxy.hold(b"held")
    holding = gevent.spawn(client.read, lambda database: database.held.find_one({}))
    wait_until(lambda: mongo_proxy.held, "the connection to be in use")
    started = monotonic()
    with deadline.limit(10), pytest.raises(PoolTimeout):
        client.read(first)
    assert monotonic() - started < 0.5 + SLACK_S
    mongo_proxy.pass_on()
    holding.get(timeout=40)


def test_connecting_keeps_its_own_limit(connect: Connect, mongo_proxy: Proxy, first: First) -> None:
    """connectTimeoutMS holds inside pymongo.timeout: a handshake that hangs is an outage."""
    client = connect(2, "minPoolSize=0", "connectTimeoutMS=1000")
    client.read(first)
    mongo_proxy.hold(b"held")
    holding = gevent.spawn(client.read, lambda database: database.held.find_one({}))
    # On a busy machine it may connect anew first, because the monitor has waited for a second.
    wait_until(lambda: mongo_proxy.held, "the one connection to be in use")
    mongo_proxy.hold(b"held", b"ismaster")  # what a new connection says first, and only that
    started = monotonic()
    with deadline.limit(10), pytest.raises(StoreDown):
        find_first(client, first)
    assert monotonic() - started < 1 + SLACK_S
    mongo_proxy.pass_on()
    holding.get(timeout=40)


def test_a_killed_server_is_reported_and_found_again(folder: Path, first: First) -> None:
    """Errors only while it is away; a read that began then waits for it."""
    with Server(folder / first.__name__) as server, Proxy(("127.0.0.1", server.port)) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/test?directConnection=true"
        client = Mongo(uri, size_for=lambda _: 5, timeout_s=5)
        client.insert("things", {"_id": 1})
        server.kill()
        proxy.refuse()
        with pytest.raises(StoreDown):
            find_first(client, first)
        server.start()  # on a busy machine it takes longer than a read waits
        proxy.target = ("127.0.0.1", server.port)
        waiting = gevent.spawn(client.read, first)
        gevent.sleep(0.1)
        proxy.pass_on()
        assert waiting.get(timeout=40) == {"_id": 1}
        again = [gevent.spawn(client.read, first) for _ in range(20)]
        gevent.joinall(again, timeout=40, raise_error=True)
        client.close()
