"""How fast documents are written, with a clock that the test sets."""

from threading import Event

import pytest

from app.documents.throttle import Throttle


def test_a_rate_spreads_the_batches_over_the_time() -> None:
    """The first begins at once, each other one when those before it have had their time."""
    now = 100.0
    throttle = Throttle(500, Event(), lambda: now)
    assert [throttle.reserve(1_000) for _ in range(3)] == pytest.approx([0, 2, 4])
    now = 107.0  # one batch was late: no burst makes up for it
    assert [throttle.reserve(500) for _ in range(3)] == pytest.approx([0, 1, 2])


def test_without_a_rate_all_begin_at_once() -> None:
    """Only a target that fails slows them down."""
    throttle = Throttle(None, Event(), lambda: 0.0)
    assert [throttle.reserve(1_000) for _ in range(3)] == [0, 0, 0]


def test_a_pause_holds_all_writers() -> None:
    """What one batch met holds the others back; a shorter pause does not end a longer one."""
    throttle = Throttle(None, Event(), lambda: 10.0)
    throttle.pause(4)
    throttle.pause(1)
    assert [throttle.reserve(1) for _ in range(2)] == [4, 4]


def test_a_stop_ends_the_wait() -> None:
    """However long it would be."""
    stopping = Event()
    stopping.set()
    throttle = Throttle(1, stopping)
    for _ in range(3):
        throttle.wait(100_000)
