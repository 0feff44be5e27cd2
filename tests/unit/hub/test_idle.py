"""greenline.hub.idle: a hub that waits is idle, one that works is not."""

from collections.abc import Iterator

import gevent
import pytest
from gevent.monkey import get_original

from greenline.hub import idle as module
from greenline.hub.idle import IdleTime
from tests.helpers.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which idle time is measured."""
    made = Clock()
    monkeypatch.setattr(module, "monotonic", made)
    return made


@pytest.fixture
def idle() -> Iterator[IdleTime]:
    made = IdleTime()
    made.start()
    gevent.sleep(0.01)  # the round of the loop in which it starts is not measured
    yield made
    made.stop()


def wait(clock: Clock, idle: IdleTime, seconds: float) -> None:
    """Let the time pass while the hub waits."""
    over = gevent.get_hub().loop.async_()

    def pass_time() -> None:
        while idle._waits_since_s is None:
            get_original("time", "sleep")(0.001)
        clock.now += seconds
        over.send()

    get_original("_thread", "start_new_thread")(pass_time, ())
    gevent.get_hub().wait(over)
    over.close()


def test_time_in_which_all_wait_is_idle_and_work_is_not(clock: Clock, idle: IdleTime) -> None:
    idle.take_share()
    wait(clock, idle, 0.2)
    assert idle.take_share() == 1.0
    clock.now += 0.2
    assert idle.take_share() == 0.0
    wait(clock, idle, 0.2)
    clock.now += 0.2
    assert idle.take_share() == pytest.approx(0.5)


def test_what_is_not_measured_is_not_counted(clock: Clock, idle: IdleTime) -> None:
    """After a stop, a start begins anew."""
    wait(clock, idle, 0.2)
    idle.stop()
    clock.now += 0.2
    idle.start()
    clock.now += 0.2
    assert idle.take_share() == 0.0
