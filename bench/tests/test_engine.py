"""
The engine in memory of ``bench.api`` and ``bench.documents``, asked by the driver.

Building it takes half a minute: it is done for ``GREENLINE_LONG_TESTS=1``, or where a bench did it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from pymongo import ASCENDING, DESCENDING, MongoClient
from pymongo.database import Database
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from bench import documents, engine, hey_build, mongodb
from greenline.mongo.capabilities import read_capabilities
from greenline.mongo.limits import read_max_connections
from tests.helpers.support import IS_LONG

pytestmark = pytest.mark.skipif(
    not IS_LONG and not hey_build.path_of(engine.SOURCES).exists(),
    reason="it is not built, and that takes a while",
)

Document = dict[str, Any]
THINGS = [{"_id": n, "half": n // 2, "price": {"currency": "EUR"}} for n in range(300)]


@pytest.fixture(scope="module")
def client() -> Iterator[MongoClient[Document]]:
    """A client of one that is started for this file."""
    with engine.started() as (uri, _), MongoClient[Document](uri) as client:
        yield client


@pytest.fixture
def database(client: MongoClient[Document]) -> Iterator[Database[Document]]:
    """A database with 300 things, written in another order."""
    database = client["bench"]
    database.things.create_index([("half", ASCENDING), ("_id", ASCENDING)])
    database.things.insert_many(reversed(THINGS))
    yield database
    client.drop_database("bench")


def test_it_is_a_replica_set_with_sessions(database: Database[Document]) -> None:
    """A driver sends lsid and $clusterTime, and is not offered transactions."""
    client = database.client
    with client.start_session() as session:
        database.things.find_one({}, session=session)
        assert session.cluster_time is not None
        assert session.operation_time is not None
    assert client.topology_description.topology_type_name == "ReplicaSetWithPrimary"
    assert client.topology_description.logical_session_timeout_minutes == 30
    assert not read_capabilities(database).has_transactions
    assert (read_max_connections(client) or 0) > 1_000


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param({"_id": 7}, [7], id="id"),
        pytest.param({"_id": {"$in": [9, 3, 1000]}}, [3, 9], id="ids"),
        pytest.param({"half": 4}, [8, 9], id="indexed"),
        pytest.param({"_id": {"$gt": 5, "$lte": 8}}, [6, 7, 8], id="range"),
        pytest.param({"$or": [{"_id": 1}, {"half": 0}]}, [0, 1], id="or"),
        pytest.param(
            {"$and": [{"price.currency": "EUR"}, {"half": 149.0}]}, [298, 299], id="inner field"
        ),
        pytest.param({"half": {"$exists": False}}, [], id="missing"),
    ],
)
def test_it_finds_what_is_asked_for(
    database: Database[Document], query: Document, expected: list[int]
) -> None:
    """By an index or by a scan, sorted or counted."""
    assert sorted(each["_id"] for each in database.things.find(query)) == expected
    assert database.things.count_documents(query) == len(expected)
    backwards = database.things.find(query, sort=[("_id", DESCENDING)])
    assert [each["_id"] for each in backwards] == expected[::-1]


def test_a_cursor_reads_all_in_batches(database: Database[Document]) -> None:
    """In the order of _id, whatever the order in which documents came."""
    assert list(database.things.find(batch_size=50)) == THINGS
    page = database.things.find({"_id": {"$gt": 10}}, {"_id": 1}).skip(2).limit(3)
    assert list(page) == [{"_id": 13}, {"_id": 14}, {"_id": 15}]


def test_duplicates_are_refused(database: Database[Document]) -> None:
    """By _id and by a unique index, with its fields; what is unordered goes on."""
    database.things.create_index("offer", unique=True, sparse=True)
    database.things.insert_one({"_id": 500, "offer": "a"})
    with pytest.raises(DuplicateKeyError, match="offer_1"):
        database.things.insert_one({"_id": 501, "offer": "a"})
    with pytest.raises(DuplicateKeyError, match="_id_"):
        database.things.insert_one({"_id": 1})
    with pytest.raises(BulkWriteError) as caught:
        database.things.insert_many([{"_id": 1}, {"_id": 1_000}], ordered=False)
    assert caught.value.details["nInserted"] == 1


def test_documents_are_changed_and_deleted(database: Database[Document]) -> None:
    """Replaced, set, inserted where there is none, and gone from its indexes."""
    things = database.things
    things.replace_one({"_id": 1}, {"half": 77_777})
    things.update_one({"_id": 2}, {"$set": {"half": 88_888}, "$unset": {"price": ""}})
    things.update_one({"_id": "new"}, {"$set": {"n": 1}}, upsert=True)
    assert things.find_one({"half": 77_777}) == {"_id": 1, "half": 77_777}
    assert things.find_one({"half": 88_888}) == {"_id": 2, "half": 88_888}
    assert things.find_one({"n": 1}) == {"_id": "new", "n": 1}
    assert things.delete_one({"half": 77_777}).deleted_count == 1
    assert things.find_one({"_id": 1}) is None
    assert things.delete_many({}).deleted_count == 300
    assert things.count_documents({}) == 0


def test_fields_are_added_to(database: Database[Document]) -> None:
    """As a checkpoint's beat: by its owner's token, whole numbers of either size."""
    checkpoints = database.checkpoints
    checkpoints.insert_one({"_id": "copy", "owner": {"token": "a"}, "beat": 1})
    for token, added in (("a", 1), ("b", 1), ("a", 2**40)):
        change = {"$set": {"owner": {"token": "a"}}, "$inc": {"beat": added, "new": 1}}
        checkpoints.update_one({"_id": "copy", "owner.token": token}, change)
    expected = {"_id": "copy", "owner": {"token": "a"}, "beat": 2 + 2**40, "new": 2}
    assert checkpoints.find_one() == expected
    with pytest.raises(OperationFailure, match="whole numbers only"):
        checkpoints.update_one({}, {"$inc": {"owner": 1}})


def test_min_and_max_bound_the_ids(database: Database[Document]) -> None:
    """As an index scan does, over values of all types; of other fields they are refused."""
    database.things.insert_many([{"_id": "a"}, {"_id": "b"}])
    by_id = database.things.find(hint=[("_id", 1)], sort={"_id": 1})
    assert [each["_id"] for each in by_id.clone().min([("_id", 298)])] == [298, 299, "a", "b"]
    assert [each["_id"] for each in by_id.clone().max([("_id", 2)])] == [0, 1]
    both = by_id.clone().min([("_id", 299)]).max([("_id", "b")])
    assert [each["_id"] for each in both] == [299, "a"]
    with pytest.raises(OperationFailure, match="min and max of the _id alone"):
        list(database.things.find(hint=[("half", 1)]).min([("half", 3)]))


def test_a_collection_is_listed_by_its_name(database: Database[Document]) -> None:
    """One that is not there is not mistaken for another."""
    database.others.insert_one({})
    assert [each["name"] for each in database.list_collections(filter={"name": "others"})] == [
        "others"
    ]
    assert list(database.list_collections(filter={"name": "none"})) == []


def test_it_is_as_far_away_as_configured() -> None:
    """A question and its answer take the round trip, and connections do not wait for each other."""
    with engine.started(round_trip_ms=200) as (uri, _), MongoClient[Document](uri) as client:
        client.admin.command("ping")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(client.admin.command, ["ping"] * 8))  # which connects
            begin_s = monotonic()
            client.admin.command("ping")
            assert monotonic() - begin_s >= 0.2
            begin_s = monotonic()
            list(threads.map(client.admin.command, ["ping"] * 8))
            assert monotonic() - begin_s < 8 * 0.2


@pytest.mark.parametrize("who", documents.WHO)
def test_everybody_copies_all_of_a_collection(
    database: Database[Document], tmp_path: Path, who: str
) -> None:
    """More than ten batches, the last one not full; all but mongoimport give new ids."""
    client, count = database.client, 11_500
    uri = "mongodb://{}:{}/greenline_bench".format(*client.address or ())
    lent = mongodb.Lent(uri, engine.NAME, None)
    copies = documents.Copies(lent, tmp_path, monotonic() + 120)
    if who == documents.IMPORT:
        copies.fill(count)
    else:
        source = client["greenline_bench"][documents.SOURCE]
        source.insert_many({"title": str(number)} for number in range(count))
    try:
        assert copies.measure(who, count).documents == count
        things = client["greenline_bench"]
        both = [list(things[name].find()) for name in (documents.SOURCE, documents.TARGET)]
        ids = [{each.pop("_id") for each in side} for side in both]
        assert len(ids[1]) == count
        assert ids[0].isdisjoint(ids[1]) == (who != documents.IMPORT)
        before, after = (sorted(map(repr, side)) for side in both)
        assert before == after
    finally:
        client.drop_database("greenline_bench")


@pytest.mark.parametrize("query", [{"_id": {"$mod": [2, 0]}}, {"$expr": {}}, {"$nor": []}])
def test_what_it_does_not_know_it_refuses(database: Database[Document], query: Document) -> None:
    """An answer to another question would be measured as if it were right."""
    with pytest.raises(OperationFailure, match="does not know"):
        database.things.find_one(query)
    with pytest.raises(OperationFailure, match="no such command"):
        database.command("findAndModify", "things")
