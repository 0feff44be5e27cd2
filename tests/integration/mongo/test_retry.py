"""greenline.mongo.retry: what is repeated, what never is, and what is said of it."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest
from bson import Int64, ObjectId
from pymongo.database import Database
from pymongo.errors import (
    AutoReconnect,
    NetworkTimeout,
    NotPrimaryError,
    ServerSelectionTimeoutError,
)
from pymongo.server_description import ServerDescription

from embedded.mongo import Mongo as Server
from greenline.errors import (
    Conflict,
    DeadlineExceeded,
    GreenlineError,
    OutcomeUnknown,
    PoolTimeout,
    StoreDown,
)
from greenline.hub import deadline
from greenline.mongo import retry
from greenline.mongo.client import Mongo
from tests.helpers.proxy import Proxy
from tests.helpers.support import wait_until
from tests.integration.conftest import Connect


@pytest.fixture
def engine(standalone_mongo: Server) -> Server:
    """With a replica set the driver repeats writes by itself."""
    return standalone_mongo


@pytest.fixture
def client(connect: Connect) -> Mongo:
    """A client with a thing, on whose number there is a unique index."""
    client = connect(1)
    with client.database() as database:
        database.things.create_index("n", unique=True)
        database.things.insert_one({"_id": 1, "n": 1})
    return client


def things(client: Mongo) -> list[dict[str, Any]]:
    return client.read(lambda database: list(database.things.find().sort("n")))


def test_a_read_whose_answer_was_lost_is_repeated(client: Mongo, mongo_proxy: Proxy) -> None:
    """The caller sees nothing of it."""
    mongo_proxy.lose(b"things")
    assert things(client) == [{"_id": 1, "n": 1}]


def test_a_find_whose_answer_was_lost_is_repeated(client: Mongo, mongo_proxy: Proxy) -> None:
    """Also the one without a cursor."""
    mongo_proxy.lose(b"things")
    assert client.read(lambda database: database.things.find_one({"_id": 1})) == {"_id": 1, "n": 1}
    assert client.read(lambda database: database.things.find_one({"_id": 2})) is None


def test_an_insert_whose_answer_was_lost_is_stored_once(client: Mongo, mongo_proxy: Proxy) -> None:
    """The second attempt finds the first one's document, which is a success."""
    document = {"_id": ObjectId(), "n": 2}
    mongo_proxy.lose(b"insert")
    client.insert("things", document)
    assert things(client) == [{"_id": 1, "n": 1}, document]


def test_what_bson_changes_is_still_our_own(client: Mongo, mongo_proxy: Proxy) -> None:
    """Microseconds are cut, a tuple comes back as a list, and _id is moved to the front."""
    document = {
        "n": 2,
        "at": datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC),
        "pair": (1, {"b": 1.0, "a": Int64(2)}),
        "_id": ObjectId(),
    }
    mongo_proxy.lose(b"insert")
    client.insert("things", document)
    assert len(things(client)) == 2


@pytest.mark.parametrize("theirs", [{"n": 3}, {"n": 2, "more": None}, {"n": 2.0}])
def test_an_id_that_is_somebody_elses_is_a_conflict(
    client: Mongo, mongo_proxy: Proxy, theirs: dict[str, Any]
) -> None:
    """Also when the first answer was lost: not the _id makes it ours, but the whole document."""
    with client.database() as database:
        database.things.insert_one({"_id": 2, **theirs})
    mongo_proxy.lose(b"insert")
    with pytest.raises(Conflict):
        client.insert("things", {"_id": 2, "n": 2})
    assert things(client) == [{"_id": 1, "n": 1}, {"_id": 2, **theirs}]


def test_a_conflict_whose_answer_was_lost_stays_a_conflict(
    client: Mongo, mongo_proxy: Proxy
) -> None:
    """A duplicate at the second attempt is only a success when the document is ours."""
    mongo_proxy.lose(b"insert")
    with pytest.raises(Conflict):
        client.insert("things", {"_id": ObjectId(), "n": 1})
    assert things(client) == [{"_id": 1, "n": 1}]


def test_a_duplicate_at_the_first_attempt_is_a_conflict(client: Mongo) -> None:
    """An _id that was there before is someone else's."""
    with pytest.raises(Conflict):
        client.insert("things", {"_id": 1, "n": 2})


@pytest.mark.parametrize(
    "change", [{"$set": {"n": 5}}, {"n": 5}], ids=["operators", "a whole document"]
)
def test_an_update_whose_answer_was_lost_is_repeated(
    client: Mongo, mongo_proxy: Proxy, change: dict[str, Any]
) -> None:
    """It returns the document as it is now."""
    mongo_proxy.lose(b"findAndModify")
    assert client.update("things", 1, change) == {"_id": 1, "n": 5}
    assert things(client) == [{"_id": 1, "n": 5}]


@pytest.mark.parametrize("operator", ["$inc", "$push", "$mul", "$currentDate"])
def test_what_adds_is_refused(client: Mongo, operator: str) -> None:
    """Done twice it would be more than done once, so it is not even begun."""
    with pytest.raises(ValueError, match="not repeatable"):
        client.update("things", 1, {"$set": {"n": 7}, operator: {"n": 1}})
    assert things(client) == [{"_id": 1, "n": 1}]


def test_an_insert_without_an_id_is_refused(client: Mongo) -> None:
    """The driver would make another one for each attempt."""
    with pytest.raises(ValueError, match="_id"):
        client.insert("things", {"n": 2})


def test_a_delete_says_whether_there_was_one(client: Mongo) -> None:
    """True once, then False."""
    assert client.delete("things", 1) is True
    assert client.delete("things", 1) is False


@pytest.mark.parametrize("document_id", [1, 2], ids=["was there", "was not there"])
def test_a_delete_whose_answer_was_lost_counts_as_done(
    client: Mongo, mongo_proxy: Proxy, document_id: int
) -> None:
    """It is gone, as was asked; whether it had been there cannot be known any more."""
    mongo_proxy.lose(b"delete")
    assert client.delete("things", document_id) is True
    assert things(client) == ([{"_id": 1, "n": 1}] if document_id == 2 else [])


Work = Callable[[Database[dict[str, Any]]], object]
WRITES: dict[str, tuple[bytes, Work]] = {
    "$inc": (b"update", lambda db: db.things.update_one({"_id": 1}, {"$inc": {"n": 1}})),
    "$push": (
        b"findAndModify",
        lambda db: db.things.find_one_and_update({"_id": 1}, {"$push": {"list": 1}}),
    ),
    "delete by filter": (b"delete", lambda db: db.things.delete_many({"n": {"$gt": 0}})),
    "many": (b"insert", lambda db: db.things.insert_many([{"n": 8}, {"n": 9}])),
    "command": (
        b"delete",
        lambda db: db.command("delete", "things", deletes=[{"q": {}, "limit": 0}]),
    ),
}
each_write = pytest.mark.parametrize(("word", "write"), WRITES.values(), ids=WRITES)


@each_write
def test_a_write_whose_answer_was_lost_is_of_unknown_outcome(
    client: Mongo, mongo_proxy: Proxy, word: bytes, write: Work
) -> None:
    """In a block nothing is repeated: it was done once here, which the caller cannot know."""
    mongo_proxy.lose(word)
    with pytest.raises(OutcomeUnknown) as caught, client.database() as database:
        write(database)
    assert isinstance(caught.value.__cause__, AutoReconnect)
    after = things(client)
    assert after != [{"_id": 1, "n": 1}]
    assert {"_id": 1, "n": 3} not in after


def test_a_write_that_is_not_answered_in_time_is_of_unknown_outcome(
    client: Mongo, mongo_proxy: Proxy
) -> None:
    """Late is not undone: the server may do it a moment after the deadline."""
    mongo_proxy.mute()
    with deadline.limit(1), pytest.raises(OutcomeUnknown), client.database() as database:
        database.things.update_one({"_id": 1}, {"$inc": {"n": 1}})
    mongo_proxy.pass_on()
    assert things(client) == [{"_id": 1, "n": 2}]


@pytest.mark.parametrize(
    "read",
    [
        lambda db: db.things.find_one({}),
        lambda db: list(db.things.find({})),
        lambda db: list(db.things.aggregate([{"$match": {}}])),
        lambda db: db.things.count_documents({}),
    ],
    ids=["find one", "find", "aggregate", "count"],
)
def test_a_read_in_a_block_whose_answer_was_lost_is_an_outage(
    client: Mongo, mongo_proxy: Proxy, read: Work
) -> None:
    """Nothing was written: the same may be asked again."""
    mongo_proxy.lose(b"things")
    with pytest.raises(StoreDown), client.database() as database:
        read(database)


def test_a_block_of_what_may_be_repeated_raises_an_outage(
    client: Mongo, mongo_proxy: Proxy
) -> None:
    """Only its caller knows that."""
    mongo_proxy.lose(b"createIndexes")
    with pytest.raises(StoreDown), client.database(repeatable=True) as database:
        database.things.create_index("m")


@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_what_is_repeated_in_vain_is_an_outage(
    client: Mongo, mongo_proxy: Proxy, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The same may be asked again, as it was here."""
    monkeypatch.setattr(retry, "MAX_ATTEMPTS", 1)
    mongo_proxy.lose({"update": b"findAndModify"}.get(operation, operation.encode()))
    with pytest.raises(StoreDown):
        {
            "insert": lambda: client.insert("things", {"_id": 2}),
            "update": lambda: client.update("things", 1, {"$set": {"n": 2}}),
            "delete": lambda: client.delete("things", 1),
        }[operation]()


def test_an_insert_that_may_not_come_again_is_reported_as_unknown(
    client: Mongo, mongo_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller would give it another _id. One that was not sent is an outage all the same."""
    monkeypatch.setattr(retry, "MAX_ATTEMPTS", 1)
    mongo_proxy.lose(b"insert")
    with pytest.raises(OutcomeUnknown):
        client.insert("things", {"_id": 2}, may_come_again=False)
    mongo_proxy.refuse()
    with pytest.raises(StoreDown):
        client.insert("things", {"_id": 10}, may_come_again=False)


@each_write
def test_a_write_that_found_no_server_is_an_outage(
    connect: Connect, mongo_proxy: Proxy, word: bytes, write: Work
) -> None:
    """It was not sent, so nothing happened: refused while connecting, then not even tried."""
    limits = ("serverSelectionTimeoutMS=100", "heartbeatFrequencyMS=500", "minPoolSize=0")
    client = connect(1, *limits)

    def is_known() -> bool:
        # A busy machine may need longer for it than one selection takes.
        with suppress(StoreDown), client.database() as database:
            return database.client.address is not None
        return False

    wait_until(is_known, "the server to be known")  # and it has no connection
    mongo_proxy.refuse()

    def cause() -> type[BaseException | None]:
        with pytest.raises(StoreDown) as caught, client.database() as database:
            write(database)
        return type(caught.value.__cause__)

    assert cause() is AutoReconnect
    wait_until(lambda: cause() is ServerSelectionTimeoutError, "the monitor to notice")


def lost(*errors: AutoReconnect) -> Callable[..., None]:
    """Return a write that fails with each of *errors*, one after the other."""
    left = list(errors)

    def write(*_: object) -> None:
        raise left.pop(0)

    return write


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotPrimaryError("not primary", {"ok": 0, "code": 10107}), StoreDown),
        (NotPrimaryError("interrupted", {"ok": 0, "code": 11602}), OutcomeUnknown),
        (
            NotPrimaryError("not copied", {"ok": 1, "writeConcernError": {"code": 10107}}),
            OutcomeUnknown,
        ),
    ],
    ids=["refused", "interrupted", "done and not copied"],
)
def test_only_what_was_refused_is_known_not_to_be_done(
    client: Mongo, error: NotPrimaryError, expected: type[GreenlineError]
) -> None:
    """A server that steps down says so before the write, in the middle, or after it."""
    with pytest.raises(expected), client.database() as database:
        database.client._retryable_write(False, lost(error), None, "update")


def test_a_loss_before_the_drivers_second_attempt_is_not_forgotten(
    client: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused at the second attempt, but the outcome of the first is unknown."""
    monkeypatch.setattr(ServerDescription, "retryable_writes_supported", True)
    refused = NotPrimaryError("not primary", {"ok": 0, "code": 10107})
    with pytest.raises(OutcomeUnknown) as caught, client.database() as database:
        write = lost(AutoReconnect("lost"), refused)
        database.client._retryable_write(True, write, None, "update")
    assert caught.value.__cause__ is refused


class Losing:
    """An attempt that fails with *causes*, one after the other, and then works."""

    def __init__(self, *causes: type[Exception]) -> None:
        self.causes = list(causes)
        self.arrived: list[bool] = []
        self.times: list[float] = []

    def __call__(self, arrived: bool) -> str:
        self.arrived.append(arrived)
        self.times.append(monotonic())
        if self.causes:
            raise StoreDown from self.causes.pop(0)("lost")
        return "done"


def test_the_attempt_knows_whether_an_earlier_one_may_have_arrived() -> None:
    """Without a server nothing was sent; after any other loss the outcome is unknown."""
    attempt = Losing(ServerSelectionTimeoutError, NetworkTimeout, ServerSelectionTimeoutError)
    assert retry.repeated(attempt) == "done"
    assert attempt.arrived == [False, False, True, True]


def test_attempts_are_limited() -> None:
    """The last error comes out as it is, with the driver's as its cause."""
    attempt = Losing(*[AutoReconnect] * 99)
    with pytest.raises(StoreDown) as caught:
        retry.repeated(attempt)
    assert len(attempt.arrived) == retry.MAX_ATTEMPTS
    assert isinstance(caught.value.__cause__, AutoReconnect)


def test_pauses_are_drawn_from_a_window_that_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full jitter: anywhere between nothing and the window's end, so that workers spread."""
    pauses: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", pauses.append)
    for _ in range(200):
        with pytest.raises(StoreDown):
            retry.repeated(Losing(*[AutoReconnect] * 99))
    for number in range(retry.MAX_ATTEMPTS - 1):
        window = retry.FIRST_PAUSE_S * 2**number
        drawn = pauses[number :: retry.MAX_ATTEMPTS - 1]
        assert len(drawn) == 200
        assert max(drawn) <= window
        assert min(drawn) < window / 4
        assert max(drawn) > window * 3 / 4


def test_no_pause_goes_beyond_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time is too short for another attempt the outage is reported at once."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 1_000_000.0)
    monkeypatch.setattr(retry, "LONGEST_PAUSE_S", 1_000_000.0)
    monkeypatch.setattr(retry, "OUTAGE_S", 1_000_000.0)
    attempt = Losing(*[AutoReconnect] * 99)
    started = monotonic()
    with deadline.limit(5), pytest.raises(StoreDown):
        retry.repeated(attempt)
    assert monotonic() - started < 4
    assert len(attempt.arrived) == 1


@pytest.mark.parametrize("error", [PoolTimeout(), DeadlineExceeded(), Conflict(), StoreDown()])
def test_other_errors_are_not_repeated(error: GreenlineError) -> None:
    """A full pool, a deadline that passed, a conflict, a name that does not resolve."""
    attempts = []

    def attempt(arrived: bool) -> None:
        attempts.append(arrived)
        raise error

    with pytest.raises(type(error)):
        retry.repeated(attempt)
    assert len(attempts) == 1
