"""flask documents copy --follow, and a copy, into a target that refuses what it is given."""

import json
import struct
from collections.abc import Callable
from contextlib import closing
from threading import Event
from typing import Any

import bson
import gevent
import pytest

from app.documents import retry
from app.documents.checkpoint import Checkpoint, Terms
from app.documents.endpoint import CollectionEndpoint
from app.documents.failures import FailureFile
from app.documents.follow import Follower, position_now
from app.documents.job import Job, JobLimits
from app.documents.transform import Recipe
from greenline.errors import StoreError
from tests.helpers.proxy import Proxy, Reply
from tests.helpers.support import wait_until
from tests.integration.app.documents.pair import (
    Pair,
    behind,
    call,
    contents,
    numbers,
    set_fail_point,
    side,
)

OP_MSG = 2013
COUNT = 5
CHANGES = 4


def named(command: str) -> bytes:
    """Return how a command on the target begins, apart from those on the checkpoint."""
    return bson.encode({command: "target"})[4:-1]


INSERT, DELETE, REPLACE = named("insert"), named("delete"), named("update")


def answer(**fields: Any) -> Reply:
    """Return what answers a message with a document, as a server does that counts nothing."""
    body = struct.pack("<Ib", 0, 0) + bson.encode({"n": 0, "nModified": 0, "ok": 1, **fields})

    def reply(asked: bytes) -> bytes:
        (request_id,) = struct.unpack_from("<i", asked, 4)
        return struct.pack("<iiii", 16 + len(body), 0, request_id, OP_MSG) + body

    return reply


def refusing(code: int, reason: str) -> Reply:
    """Return an answer that refuses the first document of a batch."""
    return answer(writeErrors=[{"index": 0, "code": code, "errmsg": reason}])


UNCONFIRMED = {"code": 64, "errmsg": "waiting for replication timed out"}
TOO_MANY = refusing(16500, "Request rate is large")
NOT_ALLOWED = refusing(13, "not authorized on target")
REFUSED = refusing(1, "cannot be written")
NOT_DECODED = answer(ok=0, code=2, errmsg="cannot be decoded")


def change(pair: Pair) -> None:
    """Let the source change, in an order that counts: a unique value goes to another document."""
    pair.source.delete_one({"_id": 0})
    pair.source.update_one({"_id": 1}, {"$set": {"n": 0}})
    pair.source.insert_one({"_id": 77, "n": 1, "x": "in the way"})
    pair.source.insert_one({"_id": 78, "n": 78})


class Followed:
    """
    A source whose changes are all there before they are applied, so that they are one batch.

    :param target: the place, which may be behind a proxy.
    """

    def __init__(self, pair: Pair, target: str, max_errors: int = 0) -> None:
        self._pair = pair
        self._target = target
        self._max_errors = max_errors
        numbers(pair, COUNT)
        pair.target.create_index("n", unique=True)
        pair.target.insert_many(list(pair.source.find()))
        self._stop = Event()
        self._applied = 0
        with side(pair.places[0]) as source, side(target) as into:
            checkpoint = self._checkpoint(into)
            checkpoint.claim(restart=False)
            checkpoint.start(position_now(source))
            checkpoint.release()
        change(pair)

    def run(self, meanwhile: Callable[[], int] = lambda: 0) -> None:
        """
        Apply them until all are, and end as Ctrl-C ends it.

        :param meanwhile: makes more changes once the first are applied; returns how many.
        """
        with (
            side(self._pair.places[0]) as source,
            side(self._target) as into,
            closing(FailureFile(self._pair.failed)) as failures,
        ):
            checkpoint = self._checkpoint(into)
            assert checkpoint.claim(restart=False)
            recipe = Recipe(None, None, into.max_document_bytes)
            limits = JobLimits(1_000, 1, None, self._max_errors)
            job = Job(source, into, checkpoint, recipe, failures, limits, self._stop)
            try:
                running = gevent.spawn(Follower(job, self._show).run)
                wait_until(lambda: self._applied >= CHANGES or running.ready(), "the changes")
                count = CHANGES + meanwhile()
                wait_until(lambda: self._applied >= count or running.ready(), "more changes")
                self._stop.set()
                running.get(timeout=60)
            finally:
                self._stop.clear()
                checkpoint.release()

    def _show(self, applied: int) -> None:
        self._applied = applied

    def _checkpoint(self, into: CollectionEndpoint) -> Checkpoint:
        return Checkpoint(into, Terms("source", False, None), self._stop)


def failed(pair: Pair) -> list[Any]:
    """Return what the failure file says: reason and _id."""
    lines = [json.loads(line) for line in pair.failed.read_text().splitlines()]
    return [(line["reason"], int(line["document"]["_id"]["$numberInt"])) for line in lines]


def test_a_delete_that_is_not_confirmed_is_done_again(pair: Pair) -> None:
    """As a batch of the copy is: twice, as the driver itself repeats it once."""
    followed = Followed(pair, pair.places[1])
    failing = {
        "failCommands": ["delete"],
        "appName": "greenline",
        "writeConcernError": UNCONFIRMED,
    }
    set_fail_point(pair, {"times": 2}, failing)
    try:
        followed.run()
    finally:
        set_fail_point(pair, "off", failing)
    assert contents(pair.target) == contents(pair.source)
    assert not pair.failed.exists()


def test_an_outage_begins_with_the_last_change_that_was_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the changes have been followed before it."""
    monkeypatch.setattr(retry, "MAX_OUTAGE_S", 0.5)
    followed = Followed(pair, pair.places[1])
    failing = {"failCommands": ["getMore"], "appName": "greenline", "errorCode": 16500}

    def fail_later() -> int:
        gevent.sleep(2 * retry.MAX_OUTAGE_S)
        set_fail_point(pair, {"times": 1}, failing)
        pair.source.insert_one({"_id": 79, "n": 79})
        return 1

    try:
        followed.run(fail_later)
    finally:
        set_fail_point(pair, "off", failing)
    assert contents(pair.target) == contents(pair.source)


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (DELETE, TOO_MANY),
        (REPLACE, TOO_MANY),
        (REPLACE, answer(writeConcernError=UNCONFIRMED)),
        (REPLACE, NOT_DECODED),
    ],
    ids=["delete", "replacement", "not confirmed", "a batch as a whole"],
)
def test_a_change_that_is_refused_for_a_moment_is_tried_again(
    pair: Pair, mongo_proxy: Proxy, command: bytes, reply: Reply
) -> None:
    """And those behind it wait: their order counts."""
    followed = Followed(pair, behind(mongo_proxy, pair.places[1]))
    mongo_proxy.reply(command, reply, times=2)
    followed.run()
    assert contents(pair.target) == contents(pair.source)
    assert not pair.failed.exists()


@pytest.mark.parametrize(
    ("words", "reply", "expected"),
    [
        (DELETE, REFUSED, ("its delete is refused: cannot be written", 0)),
        (REPLACE, REFUSED, ("cannot be written", 1)),
        (b"in the way", NOT_DECODED, ("cannot be decoded", 77)),
    ],
    ids=["delete", "replacement", "a batch because of one of them"],
)
def test_a_change_that_is_refused_is_a_failure(
    pair: Pair, mongo_proxy: Proxy, words: bytes, reply: Reply, expected: tuple[str, int]
) -> None:
    """The file has it alone; the others are applied."""
    pair.database.command("create", "target")
    followed = Followed(pair, behind(mongo_proxy, pair.places[1]), max_errors=5)
    pair.target.drop_indexes()  # one that is missing is in the way of no other
    mongo_proxy.reply(words, reply, times=1 if reply is REFUSED else 100)
    followed.run()
    assert failed(pair) == [expected]
    there, wanted = (
        [one for one in side.find(sort={"_id": 1}) if one["_id"] != expected[1]]
        for side in (pair.target, pair.source)
    )
    assert there == wanted


def test_a_refused_delete_is_not_stepped_over(pair: Pair, mongo_proxy: Proxy) -> None:
    """Following ends, and goes on with that delete."""
    followed = Followed(pair, behind(mongo_proxy, pair.places[1]))
    mongo_proxy.reply(DELETE, REFUSED)
    with pytest.raises(StoreError, match=r"1 document failed, .* its delete is refused: cannot be"):
        followed.run()
    followed.run()
    assert contents(pair.target) == contents(pair.source)


def test_nothing_is_written_before_what_was_changed_earlier(
    pair: Pair, mongo_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a batch is tried in halves, and the first one is refused for now."""
    monkeypatch.setattr(retry, "MAX_OUTAGE_S", 0.3)
    followed = Followed(pair, behind(mongo_proxy, pair.places[1]))
    pair.target.drop_indexes()  # it would keep the second half from being written
    mongo_proxy.reply(DELETE, NOT_DECODED)
    mongo_proxy.reply(DELETE, TOO_MANY, times=1_000)
    with pytest.raises(StoreError, match="Request rate is large"):
        followed.run()
    assert pair.target.find_one({"_id": 78}) is None
    mongo_proxy.pass_on()
    followed.run()
    assert contents(pair.target) == contents(pair.source)


@pytest.mark.parametrize("command", [DELETE, REPLACE], ids=["delete", "replacement"])
def test_what_is_no_fault_of_a_document_ends_following(
    pair: Pair, mongo_proxy: Proxy, command: bytes
) -> None:
    """With the target's reason, and it goes on from there."""
    followed = Followed(pair, behind(mongo_proxy, pair.places[1]))
    mongo_proxy.reply(command, NOT_ALLOWED)
    with pytest.raises(StoreError, match=r"target: not authorized on target$"):
        followed.run()
    assert not pair.failed.exists()
    followed.run()
    assert contents(pair.target) == contents(pair.source)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (TOO_MANY, "Request rate is large"),
        (answer(writeConcernError=UNCONFIRMED), "waiting for replication timed out"),
    ],
    ids=["refused", "not confirmed"],
)
@pytest.mark.parametrize("is_followed", [False, True], ids=["copy", "follow"])
def test_what_does_not_pass_ends_with_its_reason(
    pair: Pair,
    mongo_proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    reply: Reply,
    reason: str,
    is_followed: bool,
) -> None:
    """In one line that names the target."""
    monkeypatch.setattr(retry, "MAX_OUTAGE_S", 0.3)
    target = behind(mongo_proxy, pair.places[1])
    said = f"target: the target keeps refusing documents for a while: {reason}"
    if is_followed:
        followed = Followed(pair, target)
        mongo_proxy.reply(DELETE, reply, times=1_000)
        with pytest.raises(StoreError, match=f"{said}$"):
            followed.run()
    else:
        numbers(pair, COUNT)
        mongo_proxy.reply(INSERT, reply, times=1_000)
        done = call("copy", pair.places[0], target)
        assert done.exit_code == 1
        assert done.stderr.splitlines()[-1].endswith(said)


def test_a_batch_that_is_refused_in_part_may_be_not_confirmed_either(
    pair: Pair, mongo_proxy: Proxy
) -> None:
    """The rest of it is not taken for written."""
    numbers(pair, 2)
    pair.target.insert_one(pair.source.find_one({"_id": 0}) or {})
    duplicate = {"index": 0, "code": 11000, "errmsg": "E11000 duplicate key"}
    mongo_proxy.reply(INSERT, answer(writeErrors=[duplicate], writeConcernError=UNCONFIRMED))
    done = call("copy", pair.places[0], behind(mongo_proxy, pair.places[1]))
    assert done.exit_code == 0, done.output
    assert contents(pair.target) == contents(pair.source)
