"""greenline.mongo on a real server, and on one that goes away."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import gevent
import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.monitoring import CommandListener
from pymongo.server_description import ServerDescription

from app.store import documents
from embedded.mongo import Mongo as Server
from greenline.errors import ConfigError, Conflict, OutcomeUnknown, PoolClosed, StoreDown
from greenline.mongo.client import Mongo, database_of, make_client


@pytest.fixture
def client(empty_mongo: str) -> Iterator[Mongo]:
    """A client of a new database, sized to five."""
    mongo = Mongo(empty_mongo, size_for=lambda _: 5, timeout_s=5)
    yield mongo
    mongo.close()


def test_it_is_sized_by_what_the_server_tells(empty_mongo: str) -> None:
    """size_for is asked once, with the server's limit or None, and its answer is maxPoolSize."""
    asked: list[int | None] = []

    def size_for(most: int | None) -> int:
        asked.append(most)
        return 7

    mongo = Mongo(empty_mongo, size_for=size_for, timeout_s=5)
    for _ in range(2):
        with mongo.database() as database:
            database.command("ping")
            assert database.client.options.pool_options.max_pool_size == 7
    mongo.close()
    assert len(asked) == 1


def test_options_in_the_uri_win(empty_mongo: str) -> None:
    """What a person wrote into MONGODB_URI is not overridden, in whatever case it is written."""
    uri = f"{empty_mongo}?maxpoolsize=3&serverSelectionTimeoutMS=1234"
    mongo = Mongo(uri, size_for=lambda _: 50, timeout_s=5)
    with mongo.database() as database:
        options = database.client.options
        assert options.pool_options.max_pool_size == 3
        assert options.server_selection_timeout == 1.234
    mongo.close()


def test_the_log_names_the_options_that_win(
    empty_mongo: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line with the names of those that replace ours, and without any value."""
    uri = f"{empty_mongo}?maxpoolsize=31;sockettimeoutms=47111;retryReads=true"
    mongo = Mongo(uri, size_for=lambda _: 5, timeout_s=5)
    with caplog.at_level("INFO", "greenline"), mongo.database(), mongo.database():
        pass
    mongo.close()
    assert [record.getMessage() for record in caplog.records] == [
        "mongodb: options of MONGODB_URI win over ours: maxPoolSize, retryReads, socketTimeoutMS"
    ]


def test_documentdb_gets_no_retryable_writes_unless_the_uri_asks(empty_mongo: str) -> None:
    """It refuses them before 8.0.2; who has a newer one, and says so, gets them."""
    for query, documentdb, retryable in (
        ("", False, True),
        ("", True, False),
        ("?retryWrites=true", True, True),
    ):
        uri = f"{empty_mongo}{query}"
        mongo = Mongo(uri, size_for=lambda _: 5, timeout_s=5, documentdb=documentdb)
        with mongo.database() as database:
            assert database.client.options.retry_writes is retryable
        mongo.close()


@pytest.mark.parametrize(
    "uri",
    ["mongodb://", "mongodb://h/?nonsense=1", "mongodb://h/?maxPoolSize=x", "mongodb://h:0"],
)
def test_a_wrong_uri_is_refused_at_once(uri: str) -> None:
    """Also options that pymongo would only warn of, and then ignore."""
    with pytest.raises(ConfigError):
        Mongo(uri, size_for=lambda _: 5, timeout_s=5)


class Commands(CommandListener):
    """Keeps what a client asks, without what differs each time."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def started(self, event: Any) -> None:
        asked = {**event.command, "lsid": "lsid" in event.command}
        asked.pop("$clusterTime", None)
        if "maxTimeMS" in asked:
            asked["maxTimeMS"] = True
        self.asked.append(asked)

    def succeeded(self, _: Any) -> None:
        """Keep nothing of it."""

    def failed(self, _: Any) -> None:
        """Keep nothing of it."""


@pytest.mark.parametrize(
    "option",
    ["", "readConcernLevel=majority", "readPreference=nearest", "timeoutMS=60000"],
    ids=["plain", "read concern", "read preference", "timeout"],
)
def test_find_one_asks_what_the_drivers_own_asks(empty_mongo: str, option: str) -> None:
    """It leaves the cursor out, and nothing else: session, limits and preferences go along."""
    commands = Commands()
    more = {"event_listeners": [commands], "retryReads": False}
    with make_client(f"{empty_mongo}?{option}", more) as client:
        things = client.kept_database(database_of(client))["things"]
        things.insert_one({"_id": 1, "at": documents.now()})
        assert things.find_one({"_id": 1}) == Collection.find_one(things, {"_id": 1})
        assert things.find_one({"_id": 2}) is None
    ours, theirs = [each for each in commands.asked if each.get("filter") == {"_id": 1}]
    assert ours == theirs


def test_the_primary_is_selected_once_until_anything_changes(
    empty_mongo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is not known to be the primary any more is not asked."""
    selected = []
    select = MongoClient._select_server

    def selecting(client: MongoClient[Any], *args: Any, **kwargs: Any) -> Any:
        selected.append(args)
        return select(client, *args, **kwargs)

    monkeypatch.setattr(MongoClient, "_select_server", selecting)
    with make_client(empty_mongo, {"retryReads": False}) as client:
        things = client.kept_database(database_of(client))["things"]
        for _ in range(5):
            things.find_one({"_id": 1})
            things.delete_one({"_id": 1})
        known = len(selected)
        assert known < 10
        (server,) = client.topology_description.server_descriptions()
        client._topology.on_change(ServerDescription(server))
        assert things.find_one({"_id": 1}) is None
        assert len(selected) > known


def test_a_duplicate_is_a_conflict_on_insert_and_on_update(client: Mongo) -> None:
    """Whatever the server calls it."""
    with client.database() as database:
        database.things.create_index("n", unique=True)
        database.things.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 2}])
    with pytest.raises(Conflict), client.database() as database:
        database.things.insert_one({"n": 1})
    with pytest.raises(Conflict), client.database() as database:
        database.things.find_one_and_update({"_id": 1}, {"$set": {"n": 2}})


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_a_duplicate_among_many_is_a_conflict(client: Mongo, ordered: bool) -> None:
    """insert_many tells it in an error of its own, after what it did insert."""
    with pytest.raises(Conflict), client.database() as database:
        database.things.insert_many([{"_id": n} for n in (1, 2, 1)], ordered=ordered)
    assert client.read(lambda database: database.things.count_documents({})) == 2


def test_after_close_nothing_is_lent(client: Mongo) -> None:
    """A closed client says so, to a check and to a request."""
    client.check()
    client.close()
    with pytest.raises(PoolClosed):
        client.check()
    with pytest.raises(PoolClosed), client.database():
        raise AssertionError


def test_work_that_a_close_overtakes_gets_an_error(client: Mongo) -> None:
    """A request that is at work when its worker closes gets an answer that says to come back."""
    with pytest.raises(PoolClosed), client.database() as database:
        client.close()
        database.things.find_one({})


def test_a_pool_is_never_smaller_than_the_uri_says(empty_mongo: str) -> None:
    """A minPoolSize above our share wins, as every option of the URI does."""
    mongo = Mongo(f"{empty_mongo}?minPoolSize=9", size_for=lambda _: 5, timeout_s=5)
    mongo.check()
    with mongo.database() as database:
        assert database.client.options.pool_options.max_pool_size == 9
    mongo.close()


def test_closing_does_not_wait_for_a_server_that_is_gone(folder: Path) -> None:
    """A worker stops in time although MongoDB died before it."""
    with Server(folder / "gone") as server:
        mongo = Mongo(server.url, size_for=lambda _: 5, timeout_s=5)
        mongo.check()
        with mongo.database() as database:
            # Several at once leave several sessions behind, to be ended on the server.
            writers = [gevent.spawn(database.things.insert_one, {"n": n}) for n in range(9)]
            gevent.joinall(writers, timeout=40, raise_error=True)
        server.kill()
        # Sent on a connection that was in use a moment ago, or not at all: both may be.
        with pytest.raises((OutcomeUnknown, StoreDown)), mongo.database() as database:
            database.things.insert_one({"n": 2})
        started = monotonic()
        mongo.close()
        assert monotonic() - started < 4


def test_a_server_that_is_not_there_is_reported_in_a_few_seconds() -> None:
    """One line without the driver's topology, long before a request's deadline."""
    mongo = Mongo("mongodb://127.0.0.1:1/", size_for=lambda _: 5, timeout_s=5)
    started = monotonic()
    with pytest.raises(StoreDown, match=r"^MongoDB: .*refused") as caught, mongo.database():
        pass
    assert monotonic() - started < 4
    assert "Topology" not in str(caught.value)
    mongo.close()
