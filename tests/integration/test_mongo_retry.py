"""greenline.mongo.retry: what is repeated, what never is, and what is said of it."""

from time import monotonic
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect, NetworkTimeout, ServerSelectionTimeoutError

from greenline import deadline
from greenline.errors import Conflict, DeadlineExceeded, GreenlineError, PoolTimeout, StoreDown
from greenline.mongo import retry
from greenline.mongo.client import Mongo
from tests.integration.conftest import Connect
from tests.proxy import Proxy


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


def test_an_insert_whose_answer_was_lost_is_stored_once(client: Mongo, mongo_proxy: Proxy) -> None:
    """The second attempt finds the first one's document, which is a success."""
    document = {"_id": ObjectId(), "n": 2}
    mongo_proxy.lose(b"insert")
    client.insert("things", document)
    assert things(client) == [{"_id": 1, "n": 1}, document]


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


def test_a_block_is_not_repeated(client: Mongo, mongo_proxy: Proxy) -> None:
    """An increment whose answer was lost is told as an outage, and was made once."""
    mongo_proxy.lose(b"update")
    with pytest.raises(StoreDown), client.database() as database:
        database.things.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert things(client) == [{"_id": 1, "n": 2}]


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
    """Who found no server has sent nothing; after any other loss nobody knows."""
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
    """When the time is too short for another attempt the outage is told at once."""
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
