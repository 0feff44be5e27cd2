"""greenline.postgres.factory without a server."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from greenline.postgres import factory
from greenline.postgres.factory import HostShare


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
    share.path, share.plan = Path("/slots"), None
    share.users = [SimpleNamespace(resize=sizes.append)] * 2
    plan, handler = SimpleNamespace(max_pool_size=7), Noting()
    monkeypatch.setattr(factory, "pool_sizes", {})
    factory.log.addHandler(handler)
    try:
        with caplog.at_level(logging.DEBUG, factory.log.name):
            share._follow(plan)
    finally:
        factory.log.removeHandler(handler)
    assert found == [(plan, [plan, plan])]
