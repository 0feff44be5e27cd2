"""flask documents copy while a server is away for a moment."""

from typing import Any

import gevent
import pytest

from app.documents import retry
from tests.helpers.proxy import Proxy
from tests.helpers.support import IS_LONG, wait_until
from tests.integration.app.documents.pair import (
    Pair,
    behind,
    call,
    contents,
    error_of,
    numbers,
    set_fail_point,
)

COUNT = 1_100


def copying(*arguments: str) -> "gevent.Greenlet[..., Any]":
    return gevent.spawn(call, "copy", *arguments)


LOST = {"closeConnection": True}
WRITTEN = {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}


FAILURES = {
    "batch lost": ("getMore", LOST),
    "cursor forgotten": ("getMore", {"errorCode": 43}),
    "insert lost": ("insert", LOST),
    "not confirmed": ("insert", WRITTEN),
}
if IS_LONG:
    FAILURES |= {
        "find lost": ("find", LOST),
        "not primary": ("insert", {"errorCode": 10107}),
        "overload": ("insert", {"errorCode": 16500}),
        "checkpoint lost": ("update", LOST),
    }


@pytest.mark.parametrize(("command", "failure"), FAILURES.values(), ids=FAILURES)
def test_what_passes_is_tried_again(pair: Pair, command: str, failure: dict[str, Any]) -> None:
    """The cursor is opened behind the last id, a batch is written again: each document once."""
    numbers(pair, COUNT)
    # Twice: the driver itself repeats some commands once.
    failing = {"failCommands": [command], "appName": "greenline", **failure}
    set_fail_point(pair, {"times": 2}, failing)
    try:
        done = pair.call("copy")
    finally:
        set_fail_point(pair, "off", failing)
    assert done.exit_code == 0, done.output
    assert f"{COUNT:,} documents copied" in done.stdout
    assert contents(pair.target) == contents(pair.source)


def test_a_target_that_stays_away_ends_the_copy(
    pair: Pair, mongo_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a line, and a checkpoint that it goes on from."""
    monkeypatch.setattr(retry, "MAX_OUTAGE_S", 0.3)
    # A busy machine connects in that time as well.
    monkeypatch.setattr("app.documents.endpoint.SELECTION_MS", 2_000)
    numbers(pair, 1_200)
    target = behind(mongo_proxy, pair.places[1])
    running = copying(pair.places[0], target, "--max-rate", "400")
    wait_until(lambda: pair.target.count_documents({}), "documents")
    mongo_proxy.refuse()
    running.join(timeout=60)
    assert running.value is not None
    assert error_of(running.value).startswith(f"mongodb://127.0.0.1:{mongo_proxy.port}/")
    assert "to go on: " in running.value.stderr
    mongo_proxy.pass_on()
    pair.database.greenline_copies.update_one({}, {"$set": {"owner": None}})
    done = call("copy", pair.places[0], target)
    assert done.exit_code == 0, done.output
    assert "1,200 documents copied" in done.stdout
    assert contents(pair.target) == contents(pair.source)
