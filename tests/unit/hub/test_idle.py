"""greenline.hub.idle: a hub that waits is idle, one that works is not."""

import time

import gevent
import pytest

from greenline.hub.idle import IdleTime


def work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_time_in_which_all_wait_is_idle_and_work_is_not() -> None:
    """A fifth of a second of each: about half."""
    idle = IdleTime()
    idle.start()
    gevent.sleep(0.01)  # the round of the loop in which it starts is not measured
    idle.take_share()
    gevent.sleep(0.2)
    assert idle.take_share() > 0.6
    work(0.2)
    assert idle.take_share() < 0.1
    gevent.sleep(0.2)
    work(0.2)
    assert idle.take_share() == pytest.approx(0.5, abs=0.2)
    idle.stop()


def test_what_is_not_measured_is_not_counted() -> None:
    """After a stop, a start begins anew."""
    idle = IdleTime()
    idle.start()
    idle.stop()
    gevent.sleep(0.1)
    idle.start()
    work(0.05)
    assert idle.take_share() < 0.2
    idle.stop()
