"""docs/watch.md's recipe for sentry-sdk, with a receiver in the place of Sentry."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.hosting import hosting
from tests.helpers.forms import some
from tests.helpers.pages import write_example
from tests.helpers.receiver import posted

AT_ONCE = 50


@contextmanager
def sentry() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Receive envelopes; give the DSN, and the list of the events that have arrived."""
    events: list[dict[str, Any]] = []

    def take(envelope: bytes) -> None:
        # A line for the envelope, and for each item its head and what it has.
        _, *lines = envelope.splitlines()
        for head, item in zip(lines[::2], lines[1::2], strict=False):
            if json.loads(head)["type"] == "event":
                events.append(json.loads(item))

    with posted("/api/1/envelope/", take) as port:
        yield f"http://key@127.0.0.1:{port}/1", events


@pytest.mark.parametrize("arguments", some([["--preload"], []]), ids=some(["preloaded", "loaded"]))
def test_errors_arrive_with_their_own_tags(arguments: list[str], tmp_path: Path) -> None:
    """Of fifty requests at once, none of them mixed; the stop sends those that wait."""
    write_example("docs/watch.md", "shop.py", tmp_path)
    with sentry() as (dsn, events):
        given = {"PYTHONPATH": str(tmp_path), "SENTRY_DSN": dsn}
        with hosting("shop:app", *arguments, **given) as running:
            with ThreadPoolExecutor(AT_ONCE) as clients:
                paths = [f"/buy/{number}" for number in range(AT_ONCE)]
                assert {each.status for each in clients.map(running.get, paths)} == {500}
            running.stop()
            log = running.log
        found = [each for each in events if "exception" in each]
        assert len(found) == AT_ONCE, log
        for each in found:
            (error,) = each["exception"]["values"]
            user = each["user"]["id"]
            assert each["tags"]["cart"] == user
            assert error["value"] == f"no stock for {user}"
            assert each["request"]["url"].endswith(f"/buy/{user}")
        assert len({each["user"]["id"] for each in found}) == AT_ONCE
