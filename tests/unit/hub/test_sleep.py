"""``time.sleep`` of a process that is patched."""

import socket
import time

import gevent
import pytest
from gevent.monkey import get_original

from greenline.hub.sleep import sleep

SLEEPERS, WORK_S = 50, 0.002


def test_a_client_has_its_turn_among_many_whose_sleep_has_ended() -> None:
    """It writes when the first of them goes on, and is not read after the last."""
    done: list[float] = []
    ours, theirs = socket.socketpair()

    def work() -> None:
        sleep(0.1)
        if not done:
            theirs.send(b"x")
        until_s = time.monotonic() + WORK_S
        while time.monotonic() < until_s:
            pass
        done.append(time.monotonic())

    def serve() -> int:
        gevent.socket.wait_read(ours.fileno())
        return len(done)

    with ours, theirs:
        serving = gevent.spawn(serve)
        sleepers = [gevent.spawn(work) for _ in range(SLEEPERS)]
        gevent.sleep(0)
        get_original("time", "sleep")(0.2)  # in the loop's next round all have ended
        gevent.joinall([serving, *sleepers], raise_error=True)
    assert serving.value < SLEEPERS / 2


def test_it_sleeps_no_less_than_it_is_asked() -> None:
    """Also after the hub was blocked."""
    begun_s = time.monotonic()
    get_original("time", "sleep")(0.1)
    sleep(0.2)
    assert time.monotonic() - begun_s >= 0.3


def test_one_that_is_interrupted_ends_at_once() -> None:
    """By a timeout, or by a kill; nothing resumes the greenlet later."""
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
        sleep(30)
    sleeping = gevent.spawn(sleep, 30)
    gevent.sleep(0)
    sleeping.kill()
    assert sleeping.dead


@pytest.mark.parametrize("seconds", [0, 0.0])
def test_none_at_all_lets_others_run(seconds: float) -> None:
    """As time.sleep(0) does."""
    other = gevent.spawn(len, "x")
    sleep(seconds)
    assert other.value == 1
