"""greenline.ops.watch: the rates of two looks at the shared memory, whose times the test sets."""

import os
from collections.abc import Iterator

import pytest

from greenline.ops import watch
from greenline.telemetry import shared_memory
from greenline.telemetry.counters import Counters, Key

GROWTH: dict[Key, int] = {
    ("requests", "/books", "GET", 200): 40, ("requests", "/books", "GET", 500): 10,
    ("requests", "/books", "GET", 504): 30, ("deadlines",): 30, ("refused",): 20, ("gone",): 5,
}  # fmt: skip


@pytest.fixture
def memory() -> Iterator[int]:
    """Shared memory as the arbiter makes it."""
    fd = shared_memory.share()
    yield fd
    os.close(fd)


def test_rates_are_of_what_was_counted_meanwhile(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests a second are those of the last look; the others are those of all looks."""
    now_s, counters = 1000.0, Counters(memory)

    def count() -> None:
        for key, number in GROWTH.items():
            counters.count(key, number)

    def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        count()

    monkeypatch.setattr(watch, "monotonic", lambda: now_s)
    monkeypatch.setattr(watch, "sleep", pause)
    count()  # before the first look
    watching = watch.Watch(memory)
    first = watching.state()
    assert first.rate == 80
    assert first.rates == {"refused": 20, "failed": 40, "deadlines": 30, "disconnected": 5}
    now_s += 4
    then = watching.state()
    assert then.rate == 0
    assert then.rates == {"refused": 4, "failed": 8, "deadlines": 6, "disconnected": 1}
