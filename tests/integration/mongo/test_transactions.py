"""Batches where the server has transactions, and what it may answer in the middle of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gevent
import pytest
from bson import ObjectId
from pymongo import MongoClient

from app.records import StateInput
from app.store.indexes import ensure
from app.store.ports import Change, Idempotency
from app.store.states import States
from embedded.mongo import Mongo as Server
from greenline.errors import (
    Conflict,
    DeadlineExceeded,
    GreenlineError,
    OutcomeUnknown,
    PoolTimeout,
    SerializationFailure,
    StoreDown,
)
from greenline.hub import deadline
from greenline.mongo import batches
from greenline.mongo.client import Mongo
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until
from tests.integration.conftest import Connect

WRITE_CONFLICT, NOT_PRIMARY, TRANSIENT = 112, 10107, ["TransientTransactionError"]


@pytest.fixture
def client(connect: Connect, request: pytest.FixtureRequest) -> Mongo:
    """A client of a new database, with the index of pairs; of a DocumentDB if it is set so."""
    how = {"documentdb": getattr(request, "param", False)}
    # A mongod tells of an election at once; a fail point does not, so the driver has to ask.
    made = connect(20, "appName=tested", "heartbeatFrequencyMS=500", **how)
    assert ensure(partial(made.database, repeatable=True), "states", States.indexes[0]) is None
    assert made.capabilities().has_transactions
    return made


@pytest.fixture
def states(client: Mongo) -> States:
    """The repository on it."""
    return States(client)


@contextmanager
def failing(server: Server, commands: list[str], mode: Any, **how: Any) -> Iterator[None]:
    """Let *commands* of the tested client fail as *how* says, in the block."""
    data = {"failCommands": commands, "appName": "tested", **how}
    with MongoClient[dict[str, Any]](server.url) as admin:
        admin.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
        try:
            yield
        finally:
            admin.admin.command("configureFailPoint", "failCommand", mode="off")


def items(*agents: int) -> list[StateInput]:
    return [StateInput(1, agent, {}) for agent in agents]


def to_ten(now: Any) -> StateInput:
    return items(now["agent_id"] + 10)[0]


def agents(client: Mongo) -> list[int]:
    found = client.read(lambda database: list(database.states.find(sort=[("agent_id", 1)])))
    return [one["agent_id"] for one in found]


def test_a_batch_of_which_one_was_changed_meanwhile_is_not_written(client: Mongo) -> None:
    """Its caller gets an error that says to read again."""
    old = [{"_id": number, "task_id": 1, "agent_id": number, "version": 1} for number in (1, 2)]
    client.insert_all("states", old)
    old[1]["version"] = 7
    new = [{**one, "agent_id": one["agent_id"] + 10, "version": 8} for one in old]
    assert client.swap_all("states", list(zip(old, new, strict=True))) is False
    assert agents(client) == [1, 2]


def test_a_batch_is_deleted_whole_or_not_at_all(states: States, client: Mongo) -> None:
    """One that went after it was looked for takes the others' deletion back."""
    made = states.create(items(1, 2))
    assert client.delete_all("states", [ObjectId(str(made[0].id)), ObjectId()]) is False
    assert agents(client) == [1, 2]
    states.delete([str(one.id) for one in made])
    assert agents(client) == []


@pytest.mark.parametrize("command", ["insert", "commitTransaction"])
def test_a_batch_that_another_transaction_disturbed_is_done_again(
    states: States, client: Mongo, mongo: Server, command: str
) -> None:
    """A write conflict, or one at the commit: the driver begins anew, and it is there once."""
    how = {"errorCode": WRITE_CONFLICT, "errorLabels": TRANSIENT}
    with failing(mongo, [command], {"times": 2}, **how):
        states.create(items(1, 2))
    assert agents(client) == [1, 2]


def test_a_batch_that_is_disturbed_for_ever_ends_at_its_deadline(
    states: States, client: Mongo, mongo: Server
) -> None:
    """The driver alone would try for two minutes; nothing is written."""
    how = {"errorCode": WRITE_CONFLICT, "errorLabels": TRANSIENT}
    with (
        failing(mongo, ["insert"], "alwaysOn", **how),
        pytest.raises((SerializationFailure, DeadlineExceeded)),
        deadline.limit(2),
        gevent.Timeout(4),
    ):
        states.create(items(1, 2))
    assert agents(client) == []


@pytest.mark.parametrize("command", ["insert", "commitTransaction"])
def test_a_batch_whose_connection_was_lost_is_done_once(
    states: States, client: Mongo, mongo: Server, command: str
) -> None:
    """The server has closed it at the first try, before or at the commit."""
    with failing(mongo, [command], {"times": 1}, closeConnection=True):
        states.create(items(1, 2))
    assert agents(client) == [1, 2]


def test_a_commit_that_is_never_answered_is_of_unknown_outcome(
    states: States, mongo: Server
) -> None:
    """It may have been committed: the same again might be too much."""
    with (
        failing(mongo, ["commitTransaction"], "alwaysOn", closeConnection=True),
        pytest.raises(OutcomeUnknown),
        deadline.limit(3),
    ):
        states.create(items(1, 2))


def test_batches_on_the_same_items_at_once_are_all_made(states: States, client: Mongo) -> None:
    """They conflict, and take turns; none is lost."""
    made = states.create(items(1, 2, 3))
    changes = [Change(one.id, to_ten) for one in made]
    changing = [gevent.spawn(states.change, changes) for _ in range(5)]
    gevent.joinall(changing, raise_error=True)
    assert agents(client) == [51, 52, 53]


@pytest.mark.parametrize("client", [False, True], ids=["MongoDB", "DocumentDB"], indirect=True)
@pytest.mark.parametrize("command", ["insert", "update", "delete", "find"])
@pytest.mark.parametrize(
    "how", [{"closeConnection": True}, {"errorCode": NOT_PRIMARY}], ids=["lost", "not primary"]
)
def test_one_operation_survives_an_election(
    states: States, client: Mongo, mongo: Server, command: str, how: dict[str, Any]
) -> None:
    """It is done again, and done once; also by who has no retryable writes."""
    [made] = states.create(items(1))
    with failing(mongo, [command], {"times": 1}, **how):
        if command == "insert":
            states.create(items(2))
        elif command == "update":
            assert states.change([Change(made.id, to_ten)])[0].version == 2
        elif command == "delete":
            states.delete([str(made.id)])
        else:
            assert states.get(str(made.id)) == made
    wanted = {"insert": [1, 2], "update": [11], "delete": [], "find": [1]}
    assert agents(client) == wanted[command]


def test_without_a_primary_it_is_an_outage(states: States, mongo: Server) -> None:
    """Within some seconds, though the request has more time."""
    with (
        failing(mongo, ["find"], "alwaysOn", errorCode=NOT_PRIMARY),
        pytest.raises(StoreDown),
        gevent.Timeout(10),
    ):
        states.get("0" * 24)


def test_a_slow_server_ends_at_the_deadline(states: States, client: Mongo, mongo: Server) -> None:
    """And the connections that waited are whole afterwards."""
    with failing(mongo, ["find"], "alwaysOn", blockConnection=True, blockTimeMS=2_000):
        asking = [gevent.spawn(late, states) for _ in range(5)]
        gevent.joinall(asking, timeout=10, raise_error=True)
    assert [one.value for one in asking] == [DeadlineExceeded] * 5
    assert agents(client) == []


def late(states: States) -> type[GreenlineError] | None:
    """Return the error of a read that has half a second."""
    try:
        with deadline.limit(0.5):
            states.get("0" * 24)
    except GreenlineError as error:
        return type(error)
    return None


def test_a_time_limit_at_the_server_is_the_deadline(states: States, mongo: Server) -> None:
    """maxTimeMS: it gives up by itself."""
    with MongoClient[dict[str, Any]](mongo.url) as admin:
        admin.admin.command("configureFailPoint", "maxTimeAlwaysTimeOut", mode={"times": 1})
        with pytest.raises(DeadlineExceeded), deadline.limit(20):
            states.get("0" * 24)


def test_a_cursor_that_was_killed_is_read_again(states: States, mongo: Server) -> None:
    """A read of more than the first batch, whose server forgot the cursor."""
    made = states.create(items(*range(150)))
    with failing(mongo, ["getMore"], {"times": 1}, errorCode=43):
        assert len(states.get_many([str(one.id) for one in made])) == 150


def test_a_duplicate_of_a_running_batch_waits_until_its_deadline_at_most(
    states: States, client: Mongo, mongo: Server
) -> None:
    """The first one's commit takes a while; then both get its answer."""
    key = Idempotency("me states k", b"request")
    block = {"blockConnection": True, "blockTimeMS": 2_500}
    with failing(mongo, ["commitTransaction"], {"times": 1}, **block):
        first = gevent.spawn(states.create, items(1, 2), key)
        gevent.sleep(0.5)
        with pytest.raises(GreenlineError), deadline.limit(1), gevent.Timeout(2):
            states.create(items(1, 2), key)
        first.join(10)
    assert states.create(items(1, 2), key) == first.value
    assert agents(client) == [1, 2]


def test_a_duplicate_in_a_transaction_is_a_conflict(states: States, client: Mongo) -> None:
    """And takes the rest of the batch back."""
    states.create(items(2))
    with pytest.raises(Conflict):
        states.create(items(1, 2))
    assert agents(client) == [2]


def test_a_batch_that_is_not_answered_is_aborted_after_its_deadline(
    states: States, client: Mongo, mongo_proxy: Proxy, connect: Connect
) -> None:
    """The server has written it, and soon lets others write the same: nothing is left open."""
    mongo_proxy.mute()
    with pytest.raises(DeadlineExceeded), deadline.limit(1):
        states.create(items(1, 2))
    mongo_proxy.pass_on()
    is_free_again(client, connect)


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "lost"])
@pytest.mark.parametrize("late_s", [0, 10], ids=["late", "interrupted"])
def test_a_batch_whose_time_is_over_before_its_commit_is_aborted(
    states: States,
    client: Mongo,
    mongo: Server,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    late_s: float,
    lost: bool,
) -> None:
    """No commit is sent, so the outcome is known; the abort is repeated when it is lost."""

    def meanwhile() -> None:
        wait_until(lambda: deadline.remaining() == 0, "the deadline to pass")
        gevent.sleep(late_s)

    insert_then(monkeypatch, meanwhile)
    mode = {"times": 1} if lost else "off"
    with failing(mongo, ["abortTransaction"], mode, closeConnection=True):
        with pytest.raises(DeadlineExceeded), deadline.limit(1), gevent.Timeout(3):
            states.create(items(1, 2))
        monkeypatch.undo()
        is_free_again(client, connect)


def test_a_commit_that_got_no_connection_is_aborted(
    client: Mongo, mongo_proxy: Proxy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not sent: its outcome is not unknown, and the same may be asked again."""
    small = connect(1, "appName=tested")
    assert small.capabilities().has_transactions
    asking: list[gevent.Greenlet[..., Any]] = []

    def meanwhile() -> None:
        mongo_proxy.hold(b"held")
        find = gevent.spawn(small.read, lambda database: database.held.find_one({}))
        asking.append(find)
        wait_until(lambda: mongo_proxy.held == 1, "the only connection to be in use")

    insert_then(monkeypatch, meanwhile)
    with pytest.raises(PoolTimeout), deadline.limit(2):
        States(small).create(items(1, 2))
    monkeypatch.undo()
    mongo_proxy.pass_on()
    is_free_again(small, connect)
    gevent.joinall(asking, raise_error=True)


def test_a_commit_that_is_interrupted_is_of_unknown_outcome(
    states: States, mongo_proxy: Proxy
) -> None:
    """As one that was sent and is not answered: a deadline alone would say: ask again."""
    mongo_proxy.hold(b"commitTransaction")
    creating = gevent.spawn(states.create, items(1, 2))
    wait_until(lambda: mongo_proxy.held == 1, "the commit to be sent")
    creating.kill(deadline.Interrupt(None))
    mongo_proxy.pass_on()
    assert isinstance(creating.exception, OutcomeUnknown)


def insert_then(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Let *meanwhile* run between an insert of a transaction and its commit."""
    insert = batches._insert

    def insert_and_wait(*how: Any) -> None:
        insert(*how)
        meanwhile()

    monkeypatch.setattr(batches, "_insert", insert_and_wait)


def is_free_again(client: Mongo, connect: Connect) -> None:
    """
    See another client write what a transaction has written: the server keeps one for a minute.

    *client* itself would end it by its next transaction, in the same session of the server.
    """
    other = connect(1)
    assert agents(other) == []
    with deadline.limit(10):
        States(other).create(items(1, 2))
    assert agents(other) == [1, 2]
    wait_until(lambda: client.stats()["active"] == 0, "all connections to be given back")
