"""Indexes in MongoDB: ``flask indexes``, many at once, and those that cannot be made."""

import logging
import subprocess
from collections.abc import Iterator
from functools import partial
from time import monotonic

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from app.store.declared import DECLARED
from app.store.indexes import Index, Indexes
from app.store.ports import Document
from greenline.errors import Unavailable
from greenline.mongo.client import Mongo
from tests.helpers.proxy import Proxy
from tests.helpers.support import (
    BIN,
    CHECKOUT,
    LIMIT_S,
    START_LIMIT_S,
    Databases,
    environ,
    run,
    wait_until,
)
from tests.integration.conftest import Connect

SHORT_S = 1.5
COUNT = sum(map(len, DECLARED.values()))


@pytest.fixture
def settings(empty_mongo: str) -> dict[str, str]:
    """The environment of the commands, on a new database; Postgres is not asked."""
    return Databases("postgresql://nowhere/", empty_mongo).environ


@pytest.fixture
def database(empty_mongo: str) -> "Iterator[Database[Document]]":
    """The new database itself."""
    with MongoClient[Document](empty_mongo) as client:
        yield client.get_default_database()


@pytest.fixture
def mongo_client(empty_mongo: str) -> Iterator[Mongo]:
    """A worker's client of it."""
    made = Mongo(empty_mongo, size_for=lambda _: 5, timeout_s=5)
    yield made
    made.close()


def names(database: "Database[Document]") -> set[str]:
    return {
        f"{collection}.{name}"
        for collection in DECLARED
        for name in database[collection].index_information()
        if name != "_id_"
    }


def test_what_is_declared_is_made_and_dropped(
    settings: dict[str, str], database: "Database[Document]"
) -> None:
    """Twice makes no difference; what others made stays."""
    for _ in range(2):
        assert run(["flask", "indexes", "ensure"], settings).stdout.count(": there\n") == COUNT
        assert len(names(database)) == COUNT
    assert database.states.index_information()["task_id_agent_id"]["unique"] is True
    database.states.create_index("theirs", name="theirs")
    dropped = run(["flask", "indexes", "drop"], settings).stdout
    assert dropped.count(": dropped\n") == COUNT
    assert names(database) == {"states.theirs"}
    assert run(["flask", "indexes", "drop"], settings).stdout == ""


def test_stats_tell_what_there_is_and_what_is_missing(
    settings: dict[str, str], database: "Database[Document]"
) -> None:
    """Names, keys, sizes and uses."""
    run(["flask", "indexes", "ensure"], settings)
    database.products.insert_one({"offerId": "1"})  # SecantusDB tells no sizes of nothing
    database.products.drop_index("gtin__id")
    database.products.create_index("theirs", name="theirs")
    rows = {
        " ".join(line.split()[:2]): line
        for line in run(["flask", "indexes", "stats"], settings).stdout.splitlines()
    }
    assert len(rows) == 1 + len(DECLARED) + COUNT + 1  # the heading, each _id_, and theirs
    assert "task_id, agent_id" in rows["states task_id_agent_id"]
    assert rows["products gtin__id"].endswith("missing")
    assert rows["products theirs"].endswith("not declared")
    size = rows["products offerId"].split()[3].replace(",", "")
    assert int(size) > 0
    assert "unknown" not in rows["products offerId"]


def test_many_processes_may_make_them_at_once(
    settings: dict[str, str], database: "Database[Document]"
) -> None:
    """As the workers of several hosts do when they start: none fails, and each index is there."""
    command = [str(BIN / "flask"), "indexes", "ensure"]
    started = [
        subprocess.Popen(command, cwd=CHECKOUT, env=environ(settings), stdout=subprocess.PIPE)
        for _ in range(5)
    ]
    output = [process.communicate(timeout=START_LIMIT_S)[0].decode() for process in started]
    assert [process.returncode for process in started] == [0] * len(started), output
    assert len(names(database)) == COUNT


def test_duplicates_are_reported_and_the_others_are_made(
    settings: dict[str, str], database: "Database[Document]"
) -> None:
    """By the command, which fails."""
    database.states.insert_many(_pair())
    done = run(["flask", "indexes", "ensure"], settings, check=False)
    assert done.returncode == 1
    assert "states.task_id_agent_id: there are duplicates" in done.stdout
    assert "1 cannot be made" in done.stderr
    assert len(names(database)) == COUNT - 1


def test_a_worker_starts_with_duplicates_and_tells_them(
    mongo_client: Mongo, database: "Database[Document]", caplog: pytest.LogCaptureFixture
) -> None:
    """It serves what it can, as it did before there was such an index."""
    database.states.insert_many(_pair())
    indexes = _indexes(mongo_client)
    with caplog.at_level(logging.ERROR):
        indexes.start()
        wait_until(lambda: len(names(database)) == COUNT - 1, "the others")
    indexes.check()
    [record] = caplog.records
    assert record.getMessage() == (
        "index task_id_agent_id of states cannot be made: there are duplicates"
    )


def test_a_worker_is_ready_when_its_indexes_are_there(
    mongo_client: Mongo, database: "Database[Document]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, on a database where they take no time."""
    monkeypatch.setattr("app.store.indexes.OTHERS_S", LIMIT_S)
    indexes = _indexes(mongo_client)
    with pytest.raises(Unavailable, match="is being made"):
        indexes.check()
    indexes.start()
    wait_until(lambda: _is_ready(indexes), "the indexes", 2 * LIMIT_S)
    assert len(names(database)) == COUNT
    indexes.close()


@pytest.mark.parametrize(
    "slow", [Index(("n",)), Index(("n",), unique=True)], ids=["another", "unique"]
)
def test_a_worker_waits_long_for_the_unique_ones_alone(
    connect: Connect,
    mongo_proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    slow: Index,
) -> None:
    """Without these duplicates could get in; the others take minutes on a large collection."""
    monkeypatch.setattr("app.store.indexes.OTHERS_S", SHORT_S)
    client = connect()
    indexes = Indexes(partial(client.database, repeatable=True), {"things": [slow]}, bool)
    mongo_proxy.hold(b"createIndexes")
    indexes.start()
    wait_until(lambda: mongo_proxy.held, "the index to be begun")
    started = monotonic()
    # A check waits for a second, and one that is late begins the next one late.
    limit_s = SHORT_S + 1 if slow.unique else LIMIT_S
    with caplog.at_level(logging.WARNING):
        while not (is_ready := _is_ready(indexes)) and monotonic() < started + limit_s:
            pass
    assert monotonic() - started >= SHORT_S
    assert is_ready is not slow.unique
    said = ["ready while index n of things is being made"] if is_ready else []
    assert [record.getMessage() for record in caplog.records] == said
    mongo_proxy.pass_on()
    wait_until(
        lambda: "n" in client.read(lambda database: database.things.index_information()),
        "the index",
    )
    wait_until(lambda: _is_ready(indexes), "the worker to be ready")
    indexes.close()


def test_a_wait_that_ends_with_the_last_index_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has timed out, and none is left: there is no first one to name."""
    monkeypatch.setattr("app.store.indexes.INDEXES_WAIT_S", 0)
    Indexes(pytest.fail, {}, bool).check()


def _indexes(client: Mongo) -> Indexes:
    return Indexes(partial(client.database, repeatable=True), DECLARED, client.capabilities)


def _is_ready(indexes: Indexes) -> bool:
    try:
        indexes.check()
    except Unavailable:
        return False
    return True


def _pair() -> list[Document]:
    """Return two states of one pair."""
    return [{"task_id": 1, "agent_id": 1} for _ in range(2)]
