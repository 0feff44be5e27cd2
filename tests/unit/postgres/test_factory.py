"""greenline.postgres.factory without a server."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from greenline.postgres import factory
from greenline.postgres.connect import server_of
from greenline.postgres.factory import HostShare
from greenline.slots import file, location

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


def test_a_plan_is_logged_when_every_pool_follows_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A log handler may switch greenlets, which must not find some pools of another size."""
    sizes: list[Any] = []
    found: list[Any] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((share.plan, list(sizes)))

    share: Any = HostShare.__new__(HostShare)
    share.path, share.plan, share._name = Path("/slots"), None, "postgres"
    share.users = [SimpleNamespace(resize=sizes.append)] * 2
    plan, handler = SimpleNamespace(max_pool_size=7), Noting()
    monkeypatch.setattr(factory, "pool_sizes", {})
    monkeypatch.setattr(factory, "plans", {})
    factory.log.addHandler(handler)
    try:
        with caplog.at_level(logging.DEBUG, factory.log.name):
            share._follow(plan)
    finally:
        factory.log.removeHandler(handler)
    assert found == [(plan, [plan, plan])]


def test_pools_that_are_opened_at_once_share_the_slots() -> None:
    """The second waits for the first, which waits for a row in the slot table's file."""
    with location.open_file(location.path(server_of(NOWHERE)), file.SIZE) as taken:
        assert file.lock(taken.fileno(), 0, 0)
        opening = [gevent.spawn(factory.open, NOWHERE, workers=1, hosts=1) for _ in range(2)]
        gevent.sleep(0.05)
        assert not any(each.ready() for each in opening)
    first, second = (each.get() for each in opening)
    try:
        assert first._share is second._share
    finally:
        first.close()
        second.close()
