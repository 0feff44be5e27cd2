"""``MongoClient`` of unmodified code: objects that share connections within the host's budget."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from time import monotonic
from typing import Any

import flask
import gevent
import pymongo
import pytest
from bson import ObjectId
from bson.codec_options import CodecOptions
from bson.son import SON
from pymongo import AsyncMongoClient, InsertOne, MongoClient, ReadPreference, UpdateOne, monitoring
from pymongo.driver_info import DriverInfo
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    InvalidOperation,
    InvalidURI,
    WaitQueueTimeoutError,
)
from pymongo.server_api import ServerApi

from embedded.mongo import Mongo as Server
from greenline.budget.plan import MONGODB_EXTRA_A_WORKER
from greenline.errors import LatePatching, PoolTimeout
from greenline.hub import deadline
from greenline.mongo import counted, transparent
from greenline.mongo import open as mongo_open
from tests.helpers.greenlets import at_once
from tests.helpers.proxy import Proxy
from tests.helpers.support import CHECKOUT, wait_until

LIMIT_S = 30.0
SIZE = 4
AT_MOST = SIZE + MONGODB_EXTRA_A_WORKER
# As many different ones can have their monitors and one connection.
MAX_CLIENTS = (AT_MOST - 1) // counted.MONITORS
AWS = {"authMechanism": "MONGODB-AWS"}
PATCHED = ("__init__", "close", "_get_topology")

Client = MongoClient[dict[str, Any]]


@pytest.fixture(scope="module")
def closing_budgets() -> Iterator[list["gevent.Greenlet[..., None]"]]:
    """Those that close a test's budget, for which the next test does not wait."""
    running: list[gevent.Greenlet[..., None]] = []
    yield running
    gevent.joinall(running, timeout=LIMIT_S, raise_error=True)


@pytest.fixture
def pooled(
    monkeypatch: pytest.MonkeyPatch, closing_budgets: list["gevent.Greenlet[..., None]"]
) -> Iterator[None]:
    """The clients made in the test share connections, of which the process may have four."""
    monkeypatch.setenv("WEB_CONCURRENCY", "1")
    monkeypatch.setenv("MONGODB_MAX_POOL_SIZE", str(SIZE))
    for name in PATCHED:
        monkeypatch.setattr(MongoClient, name, getattr(MongoClient, name))  # what it is afterwards
    transparent.pool_pymongo()
    yield
    for budget in transparent._budgets.values():
        assert budget.stats()["active"] == 0
        closing_budgets.append(gevent.spawn(budget.close))
    transparent._clients.clear()
    transparent._budgets.clear()


@pytest.fixture
def uri(empty_mongo: str, mongo_proxy: Proxy, engine: Server, pooled: None) -> str:
    """A new database behind the proxy."""
    return f"mongodb://127.0.0.1:{mongo_proxy.port}/{empty_mongo.rpartition('/')[2]}?directConnection=true"


@pytest.fixture
def direct(empty_mongo: str, pooled: None) -> str:
    """A new database of a replica set."""
    return empty_mongo


def shared_by(client: Client) -> transparent.SharedClient:
    found: transparent.SharedClient = vars(client)["_greenline"]
    return found


def things(client: Client) -> Any:
    return client.get_default_database().things


def add(client: Client, **document: Any) -> None:
    things(client).insert_one(document)


def test_clients_of_requests_share_connections(uri: str, mongo_proxy: Proxy) -> None:
    """Fifty at once, closed, in a block or dropped, are bounded by the budget."""
    add(MongoClient(uri), x=1)
    ways: list[Callable[[], int]] = []

    def use(client: Client) -> int:
        found: int = things(client).find_one({"x": 1})["x"]
        gevent.sleep(0.01)
        return found

    def closed() -> int:
        with closing(MongoClient(uri)) as client:
            return use(client)

    def in_block() -> int:
        with Client(host=uri) as client:
            return use(client)

    def dropped() -> int:
        return use(MongoClient(uri))

    for way in (closed, in_block, dropped):
        ways += [way] * 17
    for _ in range(3):
        assert at_once(*ways) == [1] * len(ways)
    assert 1 < mongo_proxy.most <= SIZE + counted.MONITORS
    assert len(transparent._clients) == 1


def test_a_client_is_an_object_of_its_own(uri: str) -> None:
    """It is of the application's class, and compares and reads as pymongo's."""

    class Own(Client):
        made = False

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.made = True

    one, other, own = MongoClient(uri), MongoClient(uri), Own(uri)
    assert one is not other
    assert one == other
    assert isinstance(one, pymongo.MongoClient)
    assert type(own) is Own
    assert own.made
    assert repr(one) == repr(other)
    assert "greenline" not in repr(one).lower()
    assert one.options.pool_options.max_pool_size == 100
    assert own.admin.command("ping")["ok"] == 1
    with pytest.raises(AttributeError, match="has no attribute '_x'"):
        _ = one._x
    assert len(transparent._clients) == 1


def test_a_closed_client_is_pymongos(uri: str) -> None:
    """It raises pymongo's error; cursors and sessions of it do; others go on."""
    one, other = MongoClient(uri), MongoClient(uri)
    things(one).insert_many([{"x": number} for number in range(10)])
    collection = things(one)
    cursor, whole = collection.find(batch_size=2), things(other).find(batch_size=2)
    assert (next(cursor)["x"], next(whole)["x"]) == (0, 0)
    session = one.start_session()
    one.close()
    one.close()
    for use in (
        lambda: collection.find_one(),
        lambda: collection.insert_one({}),
        lambda: collection.insert_one({}, session=session),
        lambda: one.list_database_names(),
        lambda: list(cursor),
        lambda: one.address,
    ):
        with pytest.raises(InvalidOperation, match="Cannot use MongoClient after close"):
            use()
    session.end_session()
    cursor.close()
    assert other.nodes
    assert len(list(whole)) == 9
    assert things(other).count_documents({}) == 10
    with pytest.raises(InvalidOperation, match="Cannot use MongoClient after close"), one as again:
        again.admin.command("ping")


class Listener(monitoring.CommandListener):
    """Notes the commands that it hears of."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.heard.append(event.command_name)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Called at its end."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Called at its end, too."""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (dict, lambda: {"tz_aware": True}),
        (lambda: {"document_class": dict}, lambda: {"document_class": SON}),
        (lambda: {"w": 1}, lambda: {"w": "majority"}),
        (lambda: {"retryWrites": True}, lambda: {"retryWrites": False}),
        (
            lambda: {"read_preference": ReadPreference.PRIMARY},
            lambda: {"read_preference": ReadPreference.NEAREST},
        ),
        (lambda: {"appname": "one"}, lambda: {"appname": "other"}),
        (lambda: {"uuidRepresentation": "standard"}, lambda: {"uuidRepresentation": "javaLegacy"}),
        (
            lambda: {"server_api": ServerApi("1")},
            lambda: {"server_api": ServerApi("1", strict=True)},
        ),
        (lambda: {"driver": DriverInfo("a")}, lambda: {"driver": DriverInfo("b")}),
        (
            lambda: {"username": "a", "password": "b"},
            lambda: {"password": "c", "username": "a"},
        ),
        (
            lambda: {"authMechanismProperties": {"A": "b", "C": "d"}, **AWS},
            lambda: {"authMechanismProperties": {"A": "b", "C": "e"}, **AWS},
        ),
        (lambda: {"connectTimeoutMS": 1}, lambda: {"connectTimeoutMS": 1.0}),
    ],
    ids=lambda given: ",".join(given()),
)
def test_other_arguments_are_another_client(
    uri: str, one: Callable[[], dict[str, Any]], other: Callable[[], dict[str, Any]]
) -> None:
    """What is equal in value is one client, in any order and by position or name."""
    clients = [
        MongoClient(uri, **one()),
        MongoClient(uri, **other()),
        MongoClient(**one(), host=uri),
        MongoClient(uri, **dict(reversed(other().items()))),
    ]
    first, second, *again = (shared_by(client) for client in clients)
    assert first is not second
    assert again == [first, second]


def test_objects_of_the_application_equal_themselves_alone(uri: str) -> None:
    """Two listeners hear of different clients, though the class is the same."""
    listener = Listener()
    given = [[listener], [Listener()], [listener], [listener, listener]]
    clients = [MongoClient(uri, event_listeners=each) for each in given]
    first, second, third, fourth = (shared_by(client) for client in clients)
    assert first is third
    assert len({first, second, fourth}) == 3


def test_nothing_of_one_client_reaches_another(uri: str) -> None:
    """The classes of documents, times, commands heard."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    listener = Listener()
    plain, heard = MongoClient(uri), MongoClient(uri, event_listeners=[listener])
    aware = MongoClient(uri, document_class=SON, tz_aware=True)
    add(heard, _id=1, at=now)
    found = [things(client).find_one({"_id": 1}) for client in (plain, aware, heard)]
    assert [type(document) for document in found] == [dict, SON, dict]
    assert [document["at"].tzinfo is None for document in found] == [True, False, True]
    # Not the question how many connections the server allows, either.
    assert listener.heard == ["insert", "find"]
    codec = CodecOptions[dict[str, Any]](tz_aware=True)
    options = plain.get_default_database().with_options(codec)
    assert options.things.find_one()["at"] == now


def test_a_listener_that_is_registered_later_hears_later_clients(uri: str) -> None:
    """As with pymongo, and only those."""
    before = MongoClient(uri)
    listener = Listener()
    monitoring.register(listener)
    try:
        after = MongoClient(uri)
    finally:
        transparent.LISTENERS.command_listeners.remove(listener)
    before.admin.command("ping")
    assert listener.heard == []
    after.admin.command("ping")
    assert listener.heard == ["ping"]


def test_different_clients_stay_within_the_budget(uri: str, mongo_proxy: Proxy) -> None:
    """Each has monitors of its own, and idle connections go to the one that needs them."""

    def ask(number: int) -> int:
        with Client(uri, appname=f"client {number % MAX_CLIENTS}") as client:
            found: int = things(client).count_documents({})
            gevent.sleep(0.01)
            return found

    for _ in range(3):
        assert at_once(*(lambda n=n: ask(n) for n in range(40))) == [0] * 40
    assert len(transparent._clients) == MAX_CLIENTS
    assert SIZE < mongo_proxy.most <= AT_MOST


def test_one_client_too_many_waits_for_the_end_of_another(uri: str, mongo_proxy: Proxy) -> None:
    """While all are in use it fails in its time; one that is not used makes room."""
    used = [MongoClient(uri, appname=f"client {number}") for number in range(MAX_CLIENTS)]
    assert [client.admin.command("ping")["ok"] for client in used] == [1] * MAX_CLIENTS
    more = MongoClient(uri, waitQueueTimeoutMS=300, retryReads=False)
    started = monotonic()
    with pytest.raises(WaitQueueTimeoutError) as caught:
        more.admin.command("ping")
    assert 0.2 < monotonic() - started < 5
    assert isinstance(caught.value.__cause__, PoolTimeout)
    assert [client.admin.command("ping")["ok"] for client in used] == [1] * MAX_CLIENTS
    used.pop()
    gc.collect()
    assert MongoClient(uri, appname="later").admin.command("ping")["ok"] == 1
    assert mongo_proxy.most <= AT_MOST


def test_clients_without_an_operation_leave_nothing(uri: str, mongo_proxy: Proxy) -> None:
    """A listener of its own makes each of them another client."""
    for _ in range(100):
        MongoClient(uri, event_listeners=[Listener()])
    gc.collect()
    assert len(transparent._clients) < 10
    assert mongo_proxy.accepted == 0


def test_a_listener_in_each_request(uri: str, mongo_proxy: Proxy) -> None:
    """Such clients are closed as others need their places, in turn."""

    def ask() -> list[str]:
        listener = Listener()
        with Client(uri, event_listeners=[listener]) as client:
            things(client).find_one()
        return listener.heard[:1]

    number = MAX_CLIENTS + 2
    assert at_once(*[ask] * number) == [["find"]] * number
    assert mongo_proxy.most <= AT_MOST


def test_connections_of_unused_clients_are_closed(
    uri: str, mongo_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a time without an object of the application; the next one connects anew."""
    monkeypatch.setattr(counted, "UNUSED_S", 0.2)
    client = MongoClient(uri)
    add(client, x=1)
    gevent.sleep(0.8)
    assert mongo_proxy.open > 0
    del client
    gc.collect()
    wait_until(lambda: mongo_proxy.open == 0, "the connections to be closed")
    assert things(MongoClient(uri)).count_documents({}) == 1


def test_requests_wait_in_turn_for_a_connection(uri: str, mongo_proxy: Proxy) -> None:
    """Then in vain: with pymongo's error, and the cause by which the answer is a 503."""
    client = MongoClient(uri, retryReads=False)
    client.admin.command("ping")
    mongo_proxy.hold(b"held")
    holding = [gevent.spawn(things(client).find_one, {"x": "held"}) for _ in range(SIZE)]
    wait_until(lambda: mongo_proxy.held == SIZE, "all connections to be in use")
    impatient = MongoClient(uri, waitQueueTimeoutMS=200, retryReads=False)
    with pytest.raises(WaitQueueTimeoutError) as caught:
        impatient.admin.command("ping")
    assert isinstance(caught.value.__cause__, PoolTimeout)
    for limit in (pymongo.timeout, deadline.limit):
        started = monotonic()
        with pytest.raises(WaitQueueTimeoutError), limit(0.2):
            client.admin.command("ping")
        assert monotonic() - started < 5
    order: list[int] = []

    def ask(number: int) -> None:
        client.admin.command("ping")
        order.append(number)

    waiting = []
    for number in range(10):
        waiting.append(gevent.spawn(ask, number))
        gevent.sleep(0.01)
    waiting[5].kill()
    budget = shared_by(client).budget
    assert budget.stats() == {"size": SIZE, "active": SIZE, "idle": 0, "waiting": 9}
    mongo_proxy.pass_on()
    gevent.joinall([*holding, *waiting], timeout=LIMIT_S)
    assert sorted(order) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert order[0] < SIZE
    assert mongo_proxy.most <= SIZE + 2 * counted.MONITORS


def test_a_pool_size_of_the_application_is_kept(uri: str, mongo_proxy: Proxy) -> None:
    """Its own requests wait for it, and take nothing from other clients meanwhile."""
    single, other = MongoClient(uri, maxPoolSize=1), MongoClient(uri)
    assert single.options.pool_options.max_pool_size == 1
    other.admin.command("ping")
    mongo_proxy.hold(b"held")
    waiting = [gevent.spawn(things(single).find_one, {"x": "held"}) for _ in range(20)]
    wait_until(lambda: mongo_proxy.held == 1, "one to be asked")
    at_once(*(lambda: other.admin.command("ping") for _ in range(20)))
    assert mongo_proxy.held == 1
    mongo_proxy.pass_on()
    gevent.joinall(waiting, timeout=LIMIT_S, raise_error=True)


def test_more_connections_kept_than_there_may_be(uri: str, mongo_proxy: Proxy) -> None:
    """The budget is the limit for minPoolSize, and other clients get what is idle."""
    greedy, other = MongoClient(uri, minPoolSize=50), MongoClient(uri)
    greedy.admin.command("ping")
    budget = shared_by(greedy).budget
    wait_until(lambda: budget.stats()["idle"] == SIZE, "the connections that are kept")
    at_once(*([lambda: other.admin.command("ping"), lambda: greedy.admin.command("ping")] * 20))
    assert mongo_proxy.most <= AT_MOST


def test_beside_a_client_of_mongo_open(
    uri: str, mongo_proxy: Proxy, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    """Both share the host's slots."""
    allowed = 40
    monkeypatch.setenv("MONGODB_MAX_CONNECTIONS", str(allowed))
    monkeypatch.setenv("GREENLINE_SURGE_HOSTS", "0")
    monkeypatch.delenv("MONGODB_MAX_POOL_SIZE")
    opened = mongo_open(uri)
    stack.callback(opened.close)
    opened.check()

    def ask() -> None:
        assert things(MongoClient(uri)).count_documents({}) == 0
        with opened.database() as database:
            assert database.things.count_documents({}) == 0

    for _ in range(3):
        at_once(*[ask] * 60)
    assert mongo_proxy.most <= allowed - 3
    assert shared_by(MongoClient(uri)).budget._share.plan == opened.plan


def use_documents(client: Client) -> object:
    found = client["a_database"]["things"]
    found.drop()
    done = found.bulk_write([InsertOne({"_id": 1}), UpdateOne({"_id": 1}, {"$set": {"x": 2}})])
    with pytest.raises(BulkWriteError):
        found.insert_many([{"_id": 1}])
    names = client.list_database_names()
    return done.bulk_api_result, found.find_one(), "a_database" in names, found.index_information()


def use_batches(client: Client) -> object:
    found = client.get_default_database().numbers
    found.drop()
    found.insert_many([{"_id": number} for number in range(1000)])
    with found.find(batch_size=10) as cursor:
        return sum(document["_id"] for document in cursor)


def use_transactions(client: Client) -> object:
    found = client.get_default_database().accounts
    found.drop()
    found.insert_one({"_id": 1, "x": 1})
    with client.start_session() as session:
        with session.start_transaction():
            found.update_one({"_id": 1}, {"$inc": {"x": 1}}, session=session)
        session.start_transaction()
        found.update_one({"_id": 1}, {"$inc": {"x": 1}}, session=session)
        session.abort_transaction()
        session.with_transaction(
            lambda each: found.update_one({"_id": 1}, {"$inc": {"x": 10}}, session=each)
        )
        assert session.client is client
    return found.find_one()


def use_change_streams(client: Client) -> object:
    found = client.get_default_database().changing
    with found.watch(max_await_time_ms=100) as stream:
        found.insert_one({"_id": ObjectId(), "x": 1})
        return next(stream)["fullDocument"]["x"]


def use_properties(client: Client) -> object:
    client.admin.command("ping")
    description = client.topology_description
    return description.topology_type_name, client.primary, client.nodes, client.is_primary


def test_it_works_as_pymongo_does(direct: str) -> None:
    """The answers of many at once, and of pymongo's own client, are the same."""
    uses = use_documents, use_batches, use_transactions, use_change_streams, use_properties
    with Client(direct, _pool_class=pymongo.synchronous.pool.Pool) as own:
        assert "_greenline" not in vars(own)
        expected = [use(own) for use in uses]
    assert at_once(*(partial(use, MongoClient(direct)) for use in uses)) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "error"),
    [
        (("mongodb://h:x",), {}, (InvalidURI, ValueError)),
        (("mongodb://h",), {"host": "h"}, TypeError),
        (("h", 1, dict, False, False, None, 7), {}, TypeError),
        (("h",), {"nonsense": 1}, ConfigurationError),
        (("h",), {"minPoolSize": 9, "maxPoolSize": 1}, ValueError),
    ],
    ids=["URI", "twice", "too many", "unknown", "sizes"],
)
def test_wrong_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], error: type[Exception], pooled: None
) -> None:
    """They are pymongo's errors, where the client is made."""
    with pytest.raises(error):
        MongoClient(*args, **kwargs)
    assert transparent._clients == {}


def test_a_native_thread(uri: str) -> None:
    """It makes clients of its own; one of the main thread is refused there, and goes on."""
    client = MongoClient(uri)
    add(client, x=1)
    pool = gevent.get_hub().threadpool

    def make() -> int:
        with Client(uri) as own:
            assert "_greenline" not in vars(own)
            found: int = things(own).count_documents({})
            return found

    assert [pool.apply(make) for _ in range(2)] == [1, 1]
    with pytest.raises(InvalidOperation, match="native thread"):
        pool.apply(things(client).count_documents, ({},))
    assert things(client).count_documents({}) == 1


def test_asynchronous_clients_are_pymongos(pooled: None) -> None:
    """They have a loop of their own."""
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient("mongodb://h", connect=False)
    assert "_greenline" not in vars(client)


# A greenlet that is killed while it connects leaves the socket to Python.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_killed_requests_leave_nothing(uri: str, mongo_proxy: Proxy) -> None:
    """Greenlets that are killed anywhere in a request give their places to others."""
    add(MongoClient(uri), x=1)

    def ask() -> None:
        things(MongoClient(uri)).find_one({"x": 1})

    for delay_ms in range(30):
        asking = [gevent.spawn(ask) for _ in range(3 * SIZE)]
        gevent.sleep(delay_ms / 3000)
        gevent.killall(asking)
    at_once(*[ask] * 20)
    (budget,) = transparent._budgets.values()
    assert budget.stats()["active"] == budget.stats()["waiting"] == 0
    assert {limit._used for limit in budget._limits.values()} == {0}
    assert mongo_proxy.most <= AT_MOST


def test_an_outage(uri: str, mongo_proxy: Proxy) -> None:
    """Requests fail as with pymongo, and those after it do not."""
    soon = 2_000  # ms, in which a busy machine connects as well
    client = MongoClient(uri, serverSelectionTimeoutMS=soon)
    add(client, x=1)
    mongo_proxy.refuse()
    with pytest.raises(pymongo.errors.ConnectionFailure):
        add(MongoClient(uri, serverSelectionTimeoutMS=soon), x=2)
    mongo_proxy.pass_on()
    wait_until(lambda: client.nodes, "the server to be found again")
    assert at_once(*[lambda: things(client).count_documents({})] * 20) == [1] * 20


FORKED = """
import os, sys, threading, time, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", message="Monkey-patching")
from greenline.mongo import transparent
transparent.install()
from pymongo import MongoClient
client = MongoClient(sys.argv[1])
things = client.get_default_database().things
def sockets():
    with os.scandir("/proc/self/fd") as every:
        return [one for one in every if "socket" in os.readlink(one.path)]
print(threading.active_count(), len(sockets()), flush=True)
for number in range(2):
    if os.fork() == 0:
        from greenline.patch import patch_all
        patch_all()
        transparent.install()
        things.insert_one({"_id": number})
        print(things.find_one({"_id": number})["_id"], len(transparent._budgets), flush=True)
        os._exit(0)
    os.wait()
# A process that is not patched uses pymongo's own pools.
print(things.count_documents({}), len(transparent._budgets), flush=True)
if os.fork() == 0:
    print(things.count_documents({}), flush=True)
    os._exit(0)
print(os.wait()[1], things.count_documents({}), flush=True)
client.close()
while sockets() or threading.active_count() > 1:
    time.sleep(0.05)
"""


def run(code: str, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=CHECKOUT,
        env={**os.environ, "WEB_CONCURRENCY": "2", **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_client_from_before_the_fork(empty_mongo: str) -> None:
    """Its process has no thread and no socket of it; the children have clients of their own."""
    done = run(FORKED, empty_mongo)
    assert done.stdout.splitlines() == ["1 0", "0 1", "1 1", "2 0", "2", "0 2"], done.stderr
    assert done.stderr == ""


FORKED_IN_USE = """
import os, sys
from greenline.patch import patch_all
patch_all()
from greenline.mongo import transparent
transparent.pool_pymongo()
from pymongo import MongoClient
things = MongoClient(sys.argv[1], waitQueueTimeoutMS=2000).get_default_database().things
things.insert_one({})
(budget,) = transparent._budgets.values()
for limit in budget._limits.values():
    while limit.acquire(0):
        pass
if os.fork() == 0:
    print(things.count_documents({}), budget in transparent._budgets.values(), flush=True)
    os._exit(0)
os.wait()
"""


def test_a_fork_while_all_connections_are_in_use(empty_mongo: str) -> None:
    """The operations of the parent take nothing from the child, which has a budget of its own."""
    done = run(FORKED_IN_USE, empty_mongo)
    assert done.stdout == "1 False\n", done.stderr


UNSUPPORTED = """
import pymongo.synchronous.pool
pymongo.synchronous.pool.Pool.checkin = lambda self, conn, other: None
from greenline.patch import patch_all
patch_all()
from pymongo import MongoClient
assert "_greenline" not in vars(MongoClient("mongodb://h", connect=False))
print("on")
"""


def test_an_unknown_version_is_left_as_it_is() -> None:
    """With a line that says so."""
    done = run(UNSUPPORTED, GREENLINE_POOL="1")
    assert done.stdout == "on\n", done.stderr
    assert "is not supported (Pool.checkin" in done.stderr
    assert "each MongoClient has connections of its own" in done.stderr


OFF = """
from greenline.patch import patch_all
patch_all()
import sys
import pymongo
print([name for name in sys.modules if name.startswith("greenline.mongo")])
"""


def test_pymongo_is_left_as_it_is_without_the_setting() -> None:
    """Nothing that replaces its methods is imported."""
    done = run(OFF, GREENLINE_POOL="0")
    assert done.stdout == "[]\n", done.stderr


def test_it_is_refused_in_a_process_that_is_not_patched() -> None:
    """pymongo would block the hub."""
    done = run("from greenline.mongo import pool_pymongo; pool_pymongo()")
    assert LatePatching.__name__ in done.stderr


def test_mongoengine(direct: str, mongo_proxy: Proxy) -> None:
    """Documents, aliases, disconnect() and connect() again."""
    mongoengine = pytest.importorskip("mongoengine")

    class Thing(mongoengine.Document):
        name = mongoengine.StringField(unique=True)
        meta = {"db_alias": "things"}  # noqa: RUF012

    for number in range(3):
        mongoengine.connect(host=direct, alias="things", uuidRepresentation="standard")
        mongoengine.connect(host=direct, alias="others", uuidRepresentation="standard")
        assert isinstance(mongoengine.get_connection("things"), MongoClient)
        # Not by each of the first saves at once: the embedded server may try for ever to make both
        # the index and what they insert.
        Thing.ensure_indexes()
        at_once(*(Thing(name=f"{number} {each}").save for each in range(10)))
        assert Thing.objects.count() == 10 * (number + 1)
        mongoengine.disconnect("others")
        assert Thing.objects(name="0 1").first().name == "0 1"
        mongoengine.disconnect_all()
    (budget,) = transparent._budgets.values()
    assert budget.stats()["size"] <= SIZE


def test_flask_pymongo(direct: str) -> None:
    """An application with an extension object, made before the first request."""
    flask_pymongo = pytest.importorskip("flask_pymongo")
    app = flask.Flask(__name__)
    extension = flask_pymongo.PyMongo(app, direct)
    assert isinstance(extension.cx, MongoClient)

    @app.get("/<name>")
    def show(name: str) -> Any:
        extension.db.things.insert_one({"_id": name})
        return extension.db.things.find_one_or_404({"_id": name})

    def ask(number: int) -> Any:
        return app.test_client().get(f"/{number}").json

    assert at_once(*(lambda n=n: ask(n) for n in range(20))) == [
        {"_id": str(number)} for number in range(20)
    ]
    extension.save_file("a", BytesIO(b"content"))
    with app.test_request_context():
        assert extension.send_file("a").status_code == 200
    (budget,) = transparent._budgets.values()
    assert budget.stats()["size"] <= SIZE
