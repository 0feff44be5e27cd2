"""Indexes in MongoDB: ``flask indexes``, many at once, and those that cannot be made."""

import logging
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from app.store.declared import DECLARED
from app.store.indexes import Indexes
from app.store.ports import Document
from greenline.errors import Unavailable
from greenline.mongo.client import Mongo
from tests.support import BIN, CHECKOUT, Databases, environ, run, wait_until

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
    """Names, keys, sizes; uses where the server tells them, and "not told" where it does not."""
    run(["flask", "indexes", "ensure"], settings)
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
    is_told = "ferretdb" not in str(database.client.server_info())
    assert ("not told" in rows["products offerId"]) is not is_told


def test_many_processes_may_make_them_at_once(
    settings: dict[str, str], database: "Database[Document]"
) -> None:
    """As the workers of several hosts do when they start: none fails, and each index is there."""
    command = [str(BIN / "flask"), "indexes", "ensure"]
    started = [
        subprocess.Popen(command, cwd=CHECKOUT, env=environ(settings), stdout=subprocess.PIPE)
        for _ in range(5)
    ]
    told = [process.communicate(timeout=60)[0].decode() for process in started]
    assert [process.returncode for process in started] == [0] * len(started), told
    assert len(names(database)) == COUNT


def test_duplicates_are_told_and_the_others_are_made(
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
    indexes = Indexes(partial(mongo_client.database, repeatable=True), DECLARED)
    with caplog.at_level(logging.ERROR):
        indexes.start()
        wait_until(lambda: len(names(database)) == COUNT - 1, "the others")
    indexes.check()
    [record] = caplog.records
    assert record.getMessage() == (
        "index task_id_agent_id of states cannot be made: there are duplicates"
    )


def test_a_worker_is_not_ready_before_the_unique_ones_are_there(mongo_client: Mongo) -> None:
    """Or duplicates could get in; the others are no matter."""
    indexes = Indexes(partial(mongo_client.database, repeatable=True), DECLARED)
    with pytest.raises(Unavailable, match="is being made"):
        indexes.check()
    indexes.start()
    wait_until(lambda: _is_ready(indexes), "the unique ones")
    with mongo_client.database() as database:
        unique = {
            f"{collection}.{index.name}"
            for collection, declared in DECLARED.items()
            for index in declared
            if index.unique
        }
        assert unique <= names(database)
    indexes.close()


def _is_ready(indexes: Indexes) -> bool:
    try:
        indexes.check()
    except Unavailable:
        return False
    return True


def _pair() -> list[Document]:
    """Return two states of one pair."""
    return [{"task_id": 1, "agent_id": 1} for _ in range(2)]
