"""greenline.hub.deadline: one limit, what remains is passed down."""

import socket
from collections.abc import Iterator
from contextvars import copy_context
from time import monotonic
from typing import Any

import gevent
import pytest

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection; nothing is said on it."""
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.fixture
def readable(pair: tuple[socket.socket, socket.socket]) -> Iterator[Any]:
    """Something to wait for: that the near end can be read."""
    watcher = gevent.get_hub().loop.io(pair[0].fileno(), 1)
    yield watcher
    watcher.close()


def test_without_a_limit_nothing_remains_to_be_counted() -> None:
    """A script or a test has no deadline; what it asks for is what it gets."""
    assert deadline.remaining() is None
    assert deadline.remaining(3) == 3


def test_what_remains_is_the_smaller_of_both() -> None:
    """An operation's own limit holds inside the request's, and the other way round."""
    with deadline.limit(10):
        assert 9 < deadline.remaining() <= 10
        assert deadline.remaining(3) == 3
        assert 9 < deadline.remaining(30) <= 10
    assert deadline.remaining() is None


def test_an_inner_limit_cannot_outlive_the_outer_one() -> None:
    """Asking for more time inside a limit does not give more."""
    with deadline.limit(1), deadline.limit(60):
        assert deadline.remaining() <= 1


def test_a_block_that_does_not_give_up_is_interrupted() -> None:
    """The wait ends with DeadlineExceeded shortly after the limit."""
    with gevent.Timeout(5), pytest.raises(DeadlineExceeded), deadline.limit(0.05):
        gevent.sleep(60)


def test_the_limit_is_gone_after_the_block() -> None:
    """A finished block leaves no timer that could interrupt what comes next."""
    with deadline.limit(0.01):
        pass
    gevent.sleep(deadline.GRACE_S + 0.1)


def test_each_greenlet_has_its_own() -> None:
    """A deadline set in one greenlet does not reach another that runs meanwhile."""
    seen: list[float | None] = []

    def limited() -> None:
        with deadline.limit(10):
            gevent.sleep(0)

    def free() -> None:
        seen.append(deadline.remaining())

    gevent.joinall([gevent.spawn(limited), gevent.spawn(free)], timeout=5, raise_error=True)
    assert seen == [None]


def test_a_decorated_function_has_its_time_in_each_call() -> None:
    """Neither what the call before took is missing, nor what another one takes meanwhile."""

    @deadline.limit(30.0)
    def left() -> float | None:
        gevent.sleep(0.2)
        return deadline.remaining()

    def call() -> bool:
        begun_s = monotonic()
        left_s = left()
        return left_s is not None and 30.0 - (monotonic() - begun_s) <= left_s <= 29.8

    calls = [gevent.spawn_later(0.15 * number, call) for number in range(5)]
    gevent.joinall(calls, timeout=20, raise_error=True)
    assert [call.value for call in calls] == [True] * 5


def test_a_wait_ends_at_the_deadline_by_itself(readable: Any) -> None:
    """Inside the block already, so that a driver can clean up; the interrupt comes later."""
    with gevent.Timeout(5), deadline.limit(0.1):
        with pytest.raises(DeadlineExceeded):
            deadline.wait_for(readable)
        assert deadline.remaining() == 0


def test_a_wait_has_its_whole_time_after_work_that_did_not_yield(
    readable: Any, pair: tuple[socket.socket, socket.socket]
) -> None:
    """The hub's clock stood still meanwhile; the deadline counts from the real time."""
    pair[1].send(b"x")
    with gevent.Timeout(5):
        deadline.wait_for(readable)
        pair[0].recv(1)
        began = monotonic()
        while monotonic() < began + 0.2:
            pass
        started = monotonic()
        with deadline.limit(0.3), pytest.raises(DeadlineExceeded):
            deadline.wait_for(readable)
        assert monotonic() - started >= 0.3


def test_no_wait_begins_after_the_deadline(readable: Any) -> None:
    """A greenlet that was busy when it passed gets it at the next wait, not later."""
    with deadline.limit(0.01):
        gevent.sleep(0.05)
        with pytest.raises(DeadlineExceeded):
            deadline.wait_for(readable)


def test_a_wait_that_ended_is_not_disturbed_later(
    readable: Any, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline passes while its greenlet does something else; the interrupt comes later."""
    monkeypatch.setattr(deadline, "GRACE_S", 10.0)
    pair[1].send(b"x")
    with gevent.Timeout(20), deadline.limit(1.0):
        deadline.wait_for(readable)
        while deadline.remaining():
            gevent.sleep(0.05)
        gevent.sleep(0.1)


def test_without_a_limit_a_wait_has_none(
    readable: Any, pair: tuple[socket.socket, socket.socket]
) -> None:
    """It ends when there is something to read."""
    gevent.spawn_later(0.1, pair[1].send, b"x")
    with gevent.Timeout(5):
        deadline.wait_for(readable)


@pytest.mark.parametrize("outlives", [False, True], ids=["in the block", "after the block"])
def test_the_deadline_holds_where_the_context_was_copied(readable: Any, outlives: bool) -> None:
    """Work that was handed the request's context ends in time, also when the request is over."""
    others = [gevent.get_hub().loop.io(readable.fd, 1) for _ in range(3)]
    started = monotonic()
    with deadline.limit(0.2):
        waits = [gevent.spawn(copy_context().run, deadline.wait_for, other) for other in others]
        gevent.joinall(waits, timeout=0 if outlives else 5)
    gevent.joinall(waits, timeout=5)
    for other in others:
        other.close()
    assert [type(wait.exception) for wait in waits] == [DeadlineExceeded] * 3
    assert 0.2 <= monotonic() - started < 1.2


def test_the_deadline_holds_for_a_wait_that_begins_after_the_block(readable: Any) -> None:
    """The request has its answer and its timer is gone; who has its context still ends in time."""

    def late() -> None:
        gevent.sleep(0.05)
        deadline.wait_for(readable)

    with deadline.limit(0.2):
        wait = gevent.spawn(copy_context().run, late)
    wait.join(timeout=5)
    assert type(wait.exception) is DeadlineExceeded


def test_without_a_limit_the_requests_time_is_counted() -> None:
    """In its environ; inside a limit as well, unless that has a dict of its own."""
    environ: dict[str, Any] = {}
    own_s: dict[str, float] = {}

    def request() -> None:
        deadline.count_in(environ)
        with deadline.spending("postgres"):
            gevent.sleep(0.01)
        with deadline.limit(10), deadline.spending("mongodb"):
            gevent.sleep(0.01)
        with deadline.limit(10, own_s), deadline.spending("pool"):
            gevent.sleep(0.01)

    gevent.spawn(request).get()
    spent_s = environ["greenline.spent"]
    assert spent_s.keys() == {"postgres", "mongodb"}
    assert min(spent_s.values()) >= 0.01
    assert own_s.keys() == {"pool"}
    with deadline.spending("postgres"):  # another greenlet's is not
        gevent.sleep(0.01)
    assert spent_s["postgres"] < 1
