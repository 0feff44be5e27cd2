"""greenline.mongo.locks: one at a time, whoever dies; and what a server is known to do."""

from datetime import UTC, datetime, timedelta

import gevent
import pytest
from pymongo.errors import OperationFailure

from greenline.errors import SerializationFailure
from greenline.mongo import locks
from greenline.mongo.client import Mongo
from tests.integration.conftest import Connect
from tests.support import wait_until


@pytest.fixture
def client(connect: Connect) -> Mongo:
    """A client of a new database."""
    return connect(10)


def count(client: Mongo) -> int:
    return client.read(lambda database: database.locks.count_documents({}))


def test_one_at_a_time_holds_a_lock(client: Mongo) -> None:
    """Also when several are wanted, in whatever order."""
    inside: list[int] = []
    most = 0

    def work(number: int) -> None:
        nonlocal most
        names = ["a", "b"] if number % 2 else ["b", "c"]
        with locks.held(client, names):
            inside.append(number)
            most = max(most, len(inside))
            gevent.sleep(0.01)
            inside.remove(number)

    gevent.joinall([gevent.spawn(work, number) for number in range(6)], raise_error=True)
    assert most == 1
    assert count(client) == 0


def test_other_locks_are_no_matter(client: Mongo) -> None:
    """Whoever changes another item does not wait."""
    with locks.held(client, ["a"]), locks.held(client, ["b"]):
        assert count(client) == 2


def test_a_lock_is_given_back_by_who_is_killed(client: Mongo) -> None:
    """A request that is interrupted leaves nothing locked."""

    def hold() -> None:
        with locks.held(client, ["a"]):
            gevent.sleep(60)

    holding = gevent.spawn(hold)
    wait_until(lambda: count(client) == 1, "the lock")
    holding.kill()
    wait_until(lambda: count(client) == 0, "the lock to be given back")


def test_who_waits_for_too_long_is_told(client: Mongo, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an outage that may be over in a moment; the lock is still held by the other."""
    with locks.held(client, ["a"]):
        monkeypatch.setattr(locks, "WAIT_S", 0.2)
        with pytest.raises(SerializationFailure), locks.held(client, ["a", "b"]):
            pass
        assert count(client) == 1


def test_a_lock_of_a_process_that_died_is_removed_at_its_end(client: Mongo) -> None:
    """Not before."""
    ended = datetime.now(UTC) - timedelta(seconds=1)
    with client.database() as database:
        database.locks.insert_one({"_id": "a", "owner": 1, "until": ended})
    with locks.held(client, ["a"]):
        assert count(client) == 1


def test_what_the_server_can_do_is_what_it_does(client: Mongo) -> None:
    """Transactions where one works; and it is asked once."""
    told = client.capabilities()
    with client.database() as database:
        try:
            with database.client.start_session() as session, session.start_transaction():
                database.things.insert_one({"_id": 1}, session=session)
            works = True
        except OperationFailure:
            works = False
    assert told.has_transactions is works
    assert client.capabilities() is told
