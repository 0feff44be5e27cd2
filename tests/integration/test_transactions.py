"""Batches where the server has transactions: what it is sent, and what is made of its answers."""

from collections.abc import Iterator
from functools import partial

import pytest
from bson import ObjectId

from app.records import StateInput
from app.store.indexes import ensure
from app.store.ports import Change
from app.store.states import States
from embedded.mongo import Mongo as Server
from greenline.errors import Conflict
from greenline.mongo.client import Mongo
from tests.integration.transacting import Transacting, transacting


@pytest.fixture
def between(mongo: Server) -> Iterator[Transacting]:
    """What stands before the session's MongoDB."""
    with transacting(mongo.port) as standing:
        yield standing


@pytest.fixture
def client(between: Transacting, empty_mongo: str) -> Iterator[Mongo]:
    """A client of a new database behind it, with the index of pairs."""
    name = empty_mongo.rpartition("/")[2]
    uri = f"mongodb://127.0.0.1:{between.port}/{name}?directConnection=true"
    made = Mongo(uri, size_for=lambda _: 3, timeout_s=5)
    assert ensure(partial(made.database, repeatable=True), "states", States.indexes[0]) is None
    assert made.capabilities().has_transactions
    between.sent.clear()
    yield made
    made.close()


@pytest.fixture
def states(client: Mongo) -> States:
    """The repository on it."""
    return States(client)


def items(*agents: int) -> list[StateInput]:
    return [StateInput(1, agent, {}) for agent in agents]


def commands(between: Transacting) -> list[str]:
    """Return what was sent, each command of the same transaction, and forget it."""
    assert len({number for number, _ in between.sent}) == 1
    told = [name for _, name in between.sent]
    between.sent.clear()
    return told


def test_a_batch_is_one_transaction(states: States, between: Transacting) -> None:
    """Its writes are, and then they are committed; one item needs none."""
    made = states.create(items(1, 2, 3))
    assert commands(between) == ["insert", "commitTransaction"]
    states.change([Change(one.id, lambda _: items(9)[0]) for one in made[:1]])
    assert between.sent == []
    changes = [Change(one.id, lambda now: items(now["agent_id"] + 10)[0]) for one in made]
    assert [one.version for one in states.change(changes)] == [3, 2, 2]
    assert commands(between) == ["update", "commitTransaction"]


def test_a_batch_that_is_refused_is_aborted(states: States, between: Transacting) -> None:
    """And told as the conflict that it is."""
    made = states.create(items(1, 2))
    between.sent.clear()
    with pytest.raises(Conflict):
        states.create(items(3, 2))
    assert commands(between) == ["insert", "abortTransaction"]
    with pytest.raises(Conflict):
        states.change([Change(one.id, lambda _: items(2)[0]) for one in made])
    assert commands(between) == ["update", "abortTransaction"]


def test_a_batch_of_which_one_was_changed_meanwhile_is_aborted(
    client: Mongo, between: Transacting
) -> None:
    """Its caller is told to read again; nothing is committed."""
    old = [{"_id": number, "task_id": 1, "agent_id": number, "version": 1} for number in (1, 2)]
    client.insert_all("states", old)
    between.sent.clear()
    old[1]["version"] = 7
    assert client.swap_all("states", [(one, {**one, "version": 8}) for one in old]) is False
    assert commands(between) == ["update", "abortTransaction"]


def test_a_batch_is_deleted_whole_or_not_at_all(
    states: States, client: Mongo, between: Transacting
) -> None:
    """One that went after it was looked for takes the others' deletion back."""
    made = states.create(items(1, 2))
    ids = [ObjectId(str(one.id)) for one in made]
    between.sent.clear()
    assert client.delete_all("states", [*ids[:1], ObjectId()]) is False
    assert commands(between) == ["delete", "abortTransaction"]
    made = states.create(items(3, 4))
    between.sent.clear()
    states.delete([str(one.id) for one in made])
    assert commands(between) == ["delete", "commitTransaction"]
