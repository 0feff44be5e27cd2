"""flask documents copy, on a server."""

import json
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import pytest
from bson import Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from app.documents import checkpoint, compare, ids
from app.documents.copy import identity_of
from app.documents.endpoint import CollectionEndpoint
from app.documents.reading import Reader
from embedded.mongo import Mongo
from greenline.errors import Conflict
from greenline.mongo.client import server_of
from tests.integration.app.documents.pair import (
    Pair,
    call,
    contents,
    error_of,
    numbers,
    set_fail_point,
    side,
)

TRANSFORMS = "tests.integration.app.documents.transforms"
# In the order of the server, of every type that an _id may have.
IDS: list[Any] = [
    MinKey(), None, -3, 1, Int64(2**40), 2.5, Decimal128("1E+50"), "", "a", "é",
    {"a": 1}, {"a": 2, "b": [1]}, b"bytes", ObjectId(b"0" * 12), False, True,
    datetime(2026, 1, 1, tzinfo=UTC), Timestamp(1, 2), MaxKey(),
]  # fmt: skip


def test_a_copy_has_the_same_documents(pair: Pair) -> None:
    """Byte by byte, whatever types the ids have; the checkpoint goes at the end."""
    pair.source.insert_many([{"x": {"_id": number}, "_id": key} for number, key in enumerate(IDS)])
    done = pair.call("copy")
    assert done.exit_code == 0, done.output
    assert contents(pair.target) == contents(pair.source)
    copied, compared = done.stdout.splitlines()
    assert f".target: {len(IDS)} documents copied in " in copied
    assert compared == f"equal: {len(IDS)} documents on both sides, the same hash in 1 range"
    assert pair.checkpoint() is None
    assert not pair.failed.exists()


def test_a_copy_of_several_batches_has_all(pair: Pair) -> None:
    """And a second one finds them there."""
    numbers(pair, 1_100)
    for _ in range(2):
        done = pair.call("copy", "--json", "--batches-at-once", "3")
        assert done.exit_code == 0, done.output
        ends = [json.loads(line) for line in done.stdout.splitlines()]
        copied, compared = [end for end in ends if end["event"] == "end"]
        assert (copied["copied"], copied["skipped"], copied["failed"]) == (1_100, 0, 0)
        assert (compared["equal"], compared["source"], compared["target"]) == (True, 1_100, 1_100)
    assert contents(pair.target) == contents(pair.source)


def test_new_ids_are_derived_from_the_old_ones(pair: Pair) -> None:
    """So a second copy adds nothing, and the comparison knows what should be there."""
    pair.source.insert_many([{"_id": key, "n": number} for number, key in enumerate(IDS)])
    for _ in range(2):
        done = pair.call("copy", "--new-ids")
        assert done.exit_code == 0, done.output
    source = f"{server_of(pair.uri)}/{pair.database.name}.source"
    identity = identity_of(source, f"{pair.database.name}.target")
    expected = set()
    for document in contents(pair.source):
        element = ids.id_of(document)
        assert element is not None
        expected.add(ids.with_id(document, ids.derived(element, identity)))
    assert set(contents(pair.target)) == expected
    compared = pair.call("compare", "--new-ids")
    assert (compared.exit_code, compared.stdout[:6]) == (0, "equal:")
    assert pair.call("compare").exit_code == 1


@pytest.mark.parametrize("kind", ["collection", "view"])
def test_reading_goes_on_behind_any_id(pair: Pair, kind: str) -> None:
    """Across the types; a view knows no bounds of an index, and compares."""
    pair.source.insert_many([{"_id": key} for key in IDS])
    if kind == "view":
        pair.database.command("create", "seen", viewOn="source", pipeline=[])
    place = f"{pair.uri}.{'seen' if kind == 'view' else 'source'}"
    elements = [ids.id_of(document) for document in contents(pair.source)]
    with side(place) as source:
        for index, element in enumerate(elements):
            assert read(source, after=element) == elements[index + 1 :]
            assert read(source, first=element) == elements[index:]
            assert read(source, end=element) == elements[:index]


def test_a_server_that_takes_no_bounds_is_asked_to_compare(pair: Pair) -> None:
    """As Amazon DocumentDB: what it refuses is asked in another way."""
    pair.source.insert_many([{"_id": key} for key in IDS])
    elements = [ids.id_of(document) for document in contents(pair.source)]
    refused = {"failCommands": ["find"], "errorCode": 2, "appName": "greenline"}
    with side(f"{pair.uri}.source") as source:
        for index in (0, 7, len(IDS) - 1):
            set_fail_point(pair, {"times": 1}, refused)
            assert read(source, after=elements[index]) == elements[index + 1 :]
        set_fail_point(pair, {"times": 2}, refused)
        with pytest.raises(OperationFailure):
            read(source, after=elements[0])


def read(source: CollectionEndpoint, **given: Any) -> list[bytes | None]:
    """Return the ids that a reader gives, in batches of two."""
    return [ids.id_of(one) for batch in Reader(source, batch=2, **given) for one in batch]


def test_a_document_that_is_gone_may_be_the_last_that_was_read(pair: Pair) -> None:
    """The next one is not skipped in its place."""
    numbers(pair, 4)
    after = ids.id_of(contents(pair.source)[1])
    pair.source.delete_one({"_id": 1})
    with side(f"{pair.uri}.source") as source:
        found = read(source, after=after)
    assert [ids.value_of(element or b"") for element in found] == [2, 3]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("doubled", [{"_id": n, "n": 2 * n, "x": "y" * 20} for n in range(50)]),
        ("even", [{"_id": n, "n": n, "x": "y" * 20} for n in range(0, 50, 2)]),
    ],
)
@pytest.mark.parametrize("new_ids", [False, True], ids=["same ids", "new ids"])
def test_a_transform_makes_the_documents(
    pair: Pair, function: str, expected: list[Any], new_ids: bool
) -> None:
    """And the comparison makes them again."""
    numbers(pair, 50)
    options = ["--transform", f"{TRANSFORMS}:{function}", *(["--new-ids"] if new_ids else [])]
    done = pair.call("copy", *options)
    assert done.exit_code == 0, done.output
    without = {"_id": 0} if new_ids else {}
    found = sorted(pair.target.find({}, without), key=lambda document: int(document["n"]))
    if new_ids:
        expected = [{"n": document["n"], "x": document["x"]} for document in expected]
    assert found == expected
    assert pair.call("compare", *options).exit_code == 0


def test_a_transform_is_called_by_one_thread(pair: Pair) -> None:
    """However many batches are on their way: it need not be made for several."""
    numbers(pair, 3_500)
    done = pair.call("copy", "--transform", f"{TRANSFORMS}:threaded", "--new-ids")
    assert done.exit_code == 0, done.output
    assert pair.target.count_documents({}) == 3_500
    assert pair.target.distinct("thread") == [get_ident()]


def test_documents_that_fail_are_in_a_file_and_the_copy_goes_on(pair: Pair) -> None:
    """Each with its reason; the exit status says that not all is there."""
    numbers(pair, 1_500)
    options = ["--transform", f"{TRANSFORMS}:choosy", "--max-errors", "20"]
    done = pair.call("copy", *options)
    assert done.exit_code == 1, done.output
    assert "1,485 documents copied, 15 failed: see " in done.stdout
    lines = [json.loads(line) for line in pair.failed.read_text().splitlines()]
    assert sorted(int(line["document"]["n"]["$numberInt"]) for line in lines) == [
        *range(7, 1_500, 100)
    ]
    assert {line["reason"] for line in lines} == {"ValueError: a seven"}
    assert pair.target.count_documents({}) == 1_485
    assert pair.checkpoint() is None


@pytest.mark.parametrize("option", [[], ["--new-ids"]], ids=["same ids", "new ids"])
def test_what_the_transform_refuses_is_a_difference(pair: Pair, option: list[str]) -> None:
    """Both sides have the same documents, and the source has more: the status is 1."""
    numbers(pair, 300)
    options = ["--transform", f"{TRANSFORMS}:choosy", *option]
    expected = "different: 297 documents in the source and 3 that the transform refuses, 297 in the"
    copied = pair.call("copy", "--max-errors", "3", *options)
    assert copied.exit_code == 1
    assert copied.stdout.splitlines()[-1].startswith(expected)
    compared = pair.call("compare", *options)
    assert (compared.exit_code, compared.stdout[: len(expected)]) == (1, expected)
    end = json.loads(pair.call("compare", "--json", *options).stdout.splitlines()[-1])
    assert (end["equal"], end["differing"], end["refused"]) == (False, 0, 3)


def test_too_many_failures_stop_the_copy_and_nothing_is_lost(pair: Pair) -> None:
    """It goes on from there with a higher limit."""
    numbers(pair, 300)
    pair.database.command("create", "target")
    pair.target.create_index("x", unique=True)
    pair.source.update_many({}, [{"$set": {"x": {"$max": ["$_id", 3]}}}])
    said = error_of(pair.call("copy"))
    assert said.startswith("3 documents failed, and --max-errors is 0: E11000 duplicate key")
    assert str(pair.failed) in said
    assert pair.checkpoint()["owner"] is None
    done = pair.call("copy", "--max-errors", "3")
    assert done.exit_code == 1
    assert "going on after 0 documents" in done.stderr
    assert "297 documents copied, 3 failed" in done.stdout
    assert "_id 1 is missing in the target" in done.stdout
    assert pair.target.count_documents({}) == 297


def test_going_on_is_advised_only_where_it_can_help(pair: Pair) -> None:
    """The same command fails again where the server refuses the target's name."""
    numbers(pair, 3)
    done = call("copy", pair.places[0], f"{pair.uri}.system.wrong")
    assert "Invalid system namespace" in error_of(done)
    assert "to go on" not in done.stderr


@pytest.mark.parametrize("side", ["source", "target"])
def test_the_checkpoints_are_not_copied(pair: Pair, side: str) -> None:
    """A copy would change them while it reads them, or write between them."""
    numbers(pair, 3)
    own = f"{pair.uri}.{checkpoint.COLLECTION}"
    pair.database[checkpoint.COLLECTION].insert_one({"_id": "other"})
    places = (own, pair.places[1]) if side == "source" else (pair.places[0], own)
    said = error_of(call("copy", *places))
    assert said.endswith(".greenline_copies: copies keep their checkpoints here; name another one")
    assert list(pair.database[checkpoint.COLLECTION].find()) == [{"_id": "other"}]
    assert pair.target.count_documents({}) == 0


def test_another_document_of_the_same_id_is_no_copy(pair: Pair) -> None:
    """It stays as it is, and the one of the source fails."""
    numbers(pair, 5)
    pair.target.insert_many([{"_id": 1, "n": 1, "x": "y" * 20}, {"_id": 2, "other": True}])
    said = error_of(pair.call("copy"))
    assert "1 document failed" in said
    assert "the target has another document of this _id" in said
    assert pair.target.find_one({"_id": 2}) == {"_id": 2, "other": True}
    (line,) = pair.failed.read_text().splitlines()
    assert json.loads(line)["document"]["_id"] == {"$numberInt": "2"}


def test_a_document_of_16_megabytes_is_copied(pair: Pair) -> None:
    """As large as one may be."""
    largest = 16 * 1024 * 1024 - len("?id n x") - 40
    pair.source.insert_many([{"_id": 1, "n": 1, "x": "y" * largest}, {"_id": 2, "n": 2}])
    done = pair.call("copy")
    assert done.exit_code == 0, done.output
    assert contents(pair.target) == contents(pair.source)


def test_a_server_that_does_not_answer_is_named(pair: Pair) -> None:
    """In one line, without its password."""
    numbers(pair, 1)
    away = "mongodb://u:s3cret@127.0.0.1:1/d.c?serverSelectionTimeoutMS=100"
    for given in ((away, pair.places[1]), (pair.places[0], away)):
        said = error_of(call("copy", *given))
        assert said.startswith("mongodb://127.0.0.1:1/d.c: ")
        assert "s3cret" not in said


@pytest.mark.parametrize("command", ["copy", "compare"])
def test_a_collection_that_is_not_there_is_named(pair: Pair, command: str) -> None:
    """Nothing is made of nothing."""
    said = error_of(call(command, *pair.places))
    assert said.endswith(".source: there is no such collection")
    assert pair.database.list_collection_names() == []


def test_the_target_may_not_be_the_source(pair: Pair) -> None:
    """However its server is spelled."""
    numbers(pair, 3)
    other = pair.places[0].replace("127.0.0.1", "localhost")
    for target in (pair.places[0], other):
        said = error_of(call("copy", pair.places[0], target))
        assert said.endswith(".source: the target is the source")
    assert pair.database[checkpoint.COLLECTION].count_documents({}) == 0
    assert pair.source.count_documents({}) == 3


def test_the_same_name_in_another_database_is_another_collection(pair: Pair) -> None:
    """And so it is on the service's own server, by its name alone."""
    numbers(pair, 3)
    name = f"{pair.database.name}b"
    own = {"MONGODB_URI": pair.uri}  # and no DATABASE_URL: Postgres is not used
    try:
        done = call("copy", "source", f"{name}.source", **own)
        assert done.exit_code == 0, done.output
        assert contents(pair.client[name]["source"]) == contents(pair.source)
    finally:
        pair.client.drop_database(name)


def begun(pair: Pair, *options: str) -> None:
    """Leave the checkpoint of a copy that ended early."""
    numbers(pair, 10)
    pair.target.create_index("n", unique=True)
    pair.target.insert_one({"_id": "in the way", "n": 4})
    assert pair.call("copy", *options).exit_code == 1
    assert pair.checkpoint() is not None
    pair.target.drop()


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        ([], ["--new-ids"], "the copy that was begun here is with the same ids"),
        (["--new-ids"], [], "the copy that was begun here is with new ids"),
        ([], ["--transform", f"{TRANSFORMS}:doubled"], "the copy that was begun here is as it is"),
        (["--transform", f"{TRANSFORMS}:doubled"], [], f"--transform {TRANSFORMS}:doubled"),
        ([], ["--follow"], "begun without --follow"),
    ],
    ids=["same then new", "new then same", "plain then transform", "transform then plain",
         "no position"],
)  # fmt: skip
def test_a_checkpoint_of_another_copy_is_refused(
    pair: Pair, first: list[str], then: list[str], reason: str
) -> None:
    """Half of the target would be something else; --restart forgets it."""
    begun(pair, *first)
    if then == ["--follow"]:
        after = {"$set": {"after": b"\x10_id\0\0\0\0\0"}}
        pair.database[checkpoint.COLLECTION].update_one({}, after)
    assert reason in error_of(pair.call("copy", *then))
    if then != ["--follow"]:
        done = pair.call("copy", "--restart", *then)
        assert done.exit_code == 0, done.output
        assert pair.target.count_documents({}) == 10


def test_a_checkpoint_of_another_source_is_refused(pair: Pair) -> None:
    """The line names that source."""
    begun(pair)
    pair.database.other.insert_one({"_id": 1})
    said = error_of(call("copy", f"{pair.uri}.other", pair.places[1]))
    assert f"is of {server_of(pair.uri)}/{pair.database.name}.source" in said


def claimed(pair: Pair, owner: dict[str, Any]) -> None:
    """Let a copy of the same have been begun by *owner*."""
    source = f"{server_of(pair.uri)}/{pair.database.name}.source"
    pair.database[checkpoint.COLLECTION].insert_one(
        {"_id": "target", "source": source, "new_ids": False, "transform": None,
         "owner": owner, "beat": 3, "after": None}
    )  # fmt: skip


def test_a_copy_of_another_host_that_is_silent_is_taken_over(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while: it cannot be asked."""
    monkeypatch.setattr(checkpoint, "SILENCE_S", 1.0)
    numbers(pair, 10)
    claimed(pair, {"token": "t", "host": "elsewhere", "pid": 7})
    done = pair.call("copy")
    assert done.exit_code == 0, done.output
    assert pair.checkpoint() is None


def test_a_copy_that_was_taken_over_stops(pair: Pair) -> None:
    """It was slow, and was taken for dead: its checkpoint is another's by now."""
    numbers(pair, 1)
    with side(f"{pair.uri}.target") as target:
        terms = checkpoint.Terms("source", False, None)
        slow, other = (checkpoint.Checkpoint(target, terms, Event()) for _ in range(2))
        assert not slow.claim(restart=False)
        slow.save()
        slow.release()
        assert other.claim(restart=False)
        with pytest.raises(Conflict, match="another process has taken this copy over"):
            slow.save()
        slow.remove()
        assert pair.checkpoint()["owner"] == other.owner


def test_a_failure_file_that_cannot_be_written_is_named(pair: Pair, tmp_path: Path) -> None:
    """The document that failed is not lost: the copy stops before it."""
    begun(pair)
    pair.target.create_index("n", unique=True)
    pair.target.insert_one({"_id": "in the way", "n": 4})
    path = tmp_path / "no such folder" / "file"
    said = error_of(pair.call("copy", "--max-errors", "5", "--failed", str(path)))
    assert said == f"{path}: No such file or directory"
    assert pair.checkpoint()["after"] is None


def test_differences_are_named(pair: Pair) -> None:
    """Counts of both sides, and some documents of each kind."""
    numbers(pair, 20)
    assert pair.call("copy").exit_code == 0
    pair.target.delete_one({"_id": 3})
    pair.target.update_one({"_id": 4}, {"$set": {"n": 4.0}})
    pair.target.insert_one({"_id": 99})
    done = pair.call("compare")
    assert done.exit_code == 1
    assert done.stdout.strip() == (
        "different: 20 documents in the source, 20 in the target, 1 of 1 range with another hash"
        "; _id 3 is missing in the target; _id 4 has another content"
        "; _id 99 is in the target alone"
    )


def test_ids_that_look_the_same_are_named_with_their_types(pair: Pair) -> None:
    """Relaxed Extended JSON makes 32-bit integers of 64-bit ones."""
    pair.source.insert_many([{"_id": Int64(7)}, {"_id": 8}])
    pair.target.insert_many([{"_id": 7}, {"_id": 8}])
    assert (
        pair.call("compare")
        .stdout.strip()
        .endswith("; _id 7 (int64) is missing in the target; _id 7 (int32) is in the target alone")
    )


def test_ranges_are_compared_each_by_itself(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs in one of them, and what lies before the first and behind the last, is seen."""
    monkeypatch.setattr(compare, "RANGE_DOCUMENTS", 10)
    numbers(pair, 35)
    assert "the same hash in 4 ranges" in pair.call("copy").stdout
    for changed in ({"_id": -1}, {"_id": 15.5}, {"_id": 1_000}):
        pair.target.insert_one(changed)
        done = pair.call("compare")
        assert "1 of 4 ranges with another hash" in done.stdout
        assert f"_id {changed['_id']} is in the target alone" in done.stdout
        pair.target.delete_one(changed)
    assert pair.call("compare").exit_code == 0


def test_following_needs_change_streams(pair: Pair, standalone_mongo: Mongo) -> None:
    """A server without them is named, and nothing is begun."""
    name = pair.database.name
    uri = f"{standalone_mongo.url}{name}"
    client: MongoClient[Any] = MongoClient(uri)
    with client:
        client[name]["source"].insert_one({"_id": 1})
        said = error_of(call("copy", f"{uri}.source", pair.places[1], "--follow"))
        client.drop_database(name)
    assert said.startswith("--follow needs a replica set with change streams: mongodb://")
    assert pair.checkpoint() is None
