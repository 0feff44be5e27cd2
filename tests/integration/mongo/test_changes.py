"""greenline.mongo.changes: writes by any program invalidate the caches of the host."""

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from embedded.mongo import Mongo as Server
from greenline import mongo as greenline_mongo
from greenline.cache import Cache
from greenline.errors import DeadlineExceeded, PoolClosed, PoolTimeout, StoreDown
from greenline.mongo import OpenMongo
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until

MB = 1 << 20
MAX_STALE_S = 2.0
SLACK_S = 1.0


class Shop:
    """A process with a cache of names."""

    def __init__(self, opened: OpenMongo) -> None:
        self.opened = opened
        self.feed = opened.feed(MAX_STALE_S)
        self.cache = Cache(MB, 600, feed=self.feed)

    def name(self, number: int) -> str | None:
        def load() -> str | None:
            with self.opened.database() as database:
                found = database.things.find_one({"_id": number})
                return found and str(found["name"])

        return self.cache.get_or_load(f"things {number}", load, tags=["things items"])

    def names(self) -> int:
        def load() -> int:
            with self.opened.database() as database:
                return database.things.count_documents({})

        return self.cache.get_or_load("all", load, tags=["things"])

    def is_confirmed(self) -> bool:
        """Return whether a process reads the changes."""
        now_s = time.monotonic()
        return self.feed.is_current(now_s - 60, now_s, self.feed.pull())


@pytest.fixture
def things(mongo: Server, empty_mongo: str) -> Iterator[Any]:
    """The collection, as another program writes it."""
    with MongoClient(empty_mongo) as client:
        things = client.get_default_database().things
        things.insert_many([{"_id": 1, "name": "old"}, {"_id": 2, "name": "old"}])
        yield things


@pytest.fixture
def shop(things: Any, empty_mongo: str) -> Iterator[Shop]:
    opened = greenline_mongo.open(empty_mongo, workers=1, hosts=1)
    shop = Shop(opened)
    wait_until(shop.is_confirmed, "the changes")
    yield shop
    opened.close()


def test_a_changed_document_is_forgotten_and_others_are_not(shop: Shop, things: Any) -> None:
    assert (shop.name(1), shop.name(2), shop.names()) == ("old", "old", 2)
    loads = shop.cache.stats()["loads"]
    things.update_one({"_id": 1}, {"$set": {"name": "new"}})
    wait_until(lambda: shop.name(1) == "new", "the write", MAX_STALE_S + SLACK_S)
    assert (shop.name(2), shop.names()) == ("old", 2)
    assert shop.cache.stats()["loads"] == loads + 2  # the document, and what has all of them


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda things: things.insert_one({"_id": 3, "name": "new"}), ("old", 3)),
        (lambda things: things.replace_one({"_id": 1}, {"name": "new"}), ("new", 2)),
        (lambda things: things.delete_one({"_id": 1}), (None, 1)),
        (lambda things: things.drop(), (None, 0)),
        (lambda things: things.rename("others"), (None, 0)),
        (lambda things: things.database.client.drop_database(things.database.name), (None, 0)),
        (lambda things: things.update_many({}, {"$set": {"name": "new"}}), ("new", 2)),
        (
            lambda things: things.insert_many([{"_id": n, "name": "x"} for n in range(10, 700)]),
            ("old", 692),
        ),
    ],
    ids=["insert", "replace", "delete", "drop", "rename", "drop database", "update many", "many"],
)
def test_each_kind_of_write(
    shop: Shop, things: Any, write: Any, expected: tuple[str | None, int]
) -> None:
    assert (shop.name(1), shop.names()) == ("old", 2)
    write(things)
    wait_until(lambda: (shop.name(1), shop.names()) == expected, "the write", MAX_STALE_S + SLACK_S)


def test_values_are_kept_beyond_max_stale_s_while_the_changes_are_read(shop: Shop) -> None:
    shop.name(1)
    loads, began_s = shop.cache.stats()["loads"], time.monotonic()
    while time.monotonic() - began_s < MAX_STALE_S + SLACK_S:
        assert shop.name(1) == "old"
        time.sleep(0.1)
    assert shop.cache.stats()["loads"] == loads


def test_the_changes_of_a_dropped_database_are_read_again(shop: Shop, things: Any) -> None:
    things.database.client.drop_database(things.database.name)
    things.insert_one({"_id": 1, "name": "another"})
    wait_until(lambda: shop.name(1) == "another", "the new document")
    wait_until(shop.is_confirmed, "the changes")
    things.update_one({"_id": 1}, {"$set": {"name": "new"}})
    wait_until(lambda: shop.name(1) == "new", "the write", MAX_STALE_S + SLACK_S)


def test_without_change_streams_a_value_is_used_for_max_stale_s(
    standalone_mongo: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    opened = greenline_mongo.open(f"{standalone_mongo.url.rstrip('/')}/changes", workers=1, hosts=1)
    try:
        shop = Shop(opened)
        wait_until(lambda: "a value of a cache is used for 2 s" in caplog.text, "the warning")
        assert shop.feed.pull() == 0.0
        assert shop.names() == 0
        with MongoClient(standalone_mongo.url) as client:
            client.changes.things.insert_one({})
            wait_until(lambda: shop.names() == 1, "the next load", MAX_STALE_S + SLACK_S)
            client.drop_database("changes")
    finally:
        opened.close()


def test_an_exchanged_client_reads_on_where_the_old_one_was(
    shop: Shop, things: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker begins with a small pool and exchanges its client: nothing is lost."""
    caplog.set_level(logging.WARNING)
    assert (shop.name(1), shop.name(2)) == ("old", "old")
    loads = shop.cache.stats()["loads"]
    clients = shop.opened._clients
    old = clients.current
    assert old is not None
    clients.current = shop.opened._make(3)
    old.close()
    things.update_one({"_id": 1}, {"$set": {"name": "new"}})
    wait_until(lambda: shop.name(1) == "new", "the write", MAX_STALE_S + SLACK_S)
    assert shop.name(2) == "old"
    assert shop.cache.stats()["loads"] == loads + 1
    assert caplog.text == ""


def test_after_an_outage_the_changes_are_read_again(
    things: Any, mongo_proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    name = things.database.name
    url = f"mongodb://127.0.0.1:{mongo_proxy.port}/{name}?directConnection=true"
    opened = greenline_mongo.open(url, workers=1, hosts=1, timeout_s=1.0)
    try:
        shop = Shop(opened)
        wait_until(shop.is_confirmed, "the changes")
        assert shop.name(1) == "old"
        mongo_proxy.refuse()
        wait_until(lambda: "was lost: caches are emptied" in caplog.text, "the loss")
        things.update_one({"_id": 1}, {"$set": {"name": "new"}})
        mongo_proxy.pass_on()
        wait_until(shop.is_confirmed, "the changes")
        assert shop.name(1) == "new"
        things.update_one({"_id": 1}, {"$set": {"name": "newer"}})
        wait_until(lambda: shop.name(1) == "newer", "the write", MAX_STALE_S + SLACK_S)
    finally:
        opened.close()


def test_a_leader_that_cannot_close_its_stream_lets_another_one_lead(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error while it forgets must not leave the lock with it."""

    def fail(**_: object) -> None:
        raise StoreDown

    (reader,) = shop.opened._readers
    monkeypatch.setattr(reader, "forget", fail)
    monkeypatch.setattr(reader, "step", fail)
    other, failed_s = shop.opened.feed(), time.monotonic()
    wait_until(lambda: other.pull() > failed_s, "another leader")


@pytest.mark.parametrize("error", [PoolTimeout, DeadlineExceeded])
def test_requests_that_have_all_connections_empty_no_cache(
    shop: Shop,
    things: Any,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The stream is read on where it was."""
    caplog.set_level(logging.WARNING)
    assert (shop.name(1), shop.name(2)) == ("old", "old")
    loads = shop.cache.stats()["loads"]
    (reader,) = shop.opened._readers
    read, failed = reader._read, 0

    def fail() -> None:
        nonlocal failed
        failed += 1
        raise error

    monkeypatch.setattr(reader, "_read", fail)
    wait_until(lambda: failed > 3, "some errors")
    things.update_one({"_id": 1}, {"$set": {"name": "new"}})
    monkeypatch.setattr(reader, "_read", read)
    wait_until(lambda: shop.name(1) == "new", "the write", MAX_STALE_S + SLACK_S)
    assert shop.name(2) == "old"
    assert shop.cache.stats()["loads"] == loads + 1
    assert caplog.text == ""


def test_what_was_read_before_an_error_is_published(
    shop: Shop, things: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream goes on behind it, and does not return it again."""
    assert (shop.name(1), shop.name(2)) == ("old", "old")
    (reader,) = shop.opened._readers
    stream, read = reader._stream, list[Any]()
    try_next = stream.try_next

    def fail_at_the_end() -> Any:
        change = try_next()
        if change is None and read:
            read.clear()
            raise PoolTimeout
        read.extend([change] if change else [])
        return change

    monkeypatch.setattr(stream, "try_next", fail_at_the_end)
    loads = shop.cache.stats()["loads"]
    things.update_one({"_id": 1}, {"$set": {"name": "new"}})
    wait_until(lambda: shop.name(1) == "new", "the write", MAX_STALE_S + SLACK_S)
    assert shop.name(2) == "old"
    assert shop.cache.stats()["loads"] == loads + 1


def test_another_primary_empties_the_caches(shop: Shop) -> None:
    """The former one may have rolled back what no change stream shows."""
    assert shop.name(1) == "old"
    loads = shop.cache.stats()["loads"]
    (reader,) = shop.opened._readers
    reader._primary = "another"
    wait_until(lambda: shop.name(1) and shop.cache.stats()["loads"] > loads, "another load")


def test_a_closed_one_has_no_feed(empty_mongo: str) -> None:
    opened = greenline_mongo.open(empty_mongo, workers=1, hosts=1)
    opened.close()
    with pytest.raises(PoolClosed):
        opened.feed()
