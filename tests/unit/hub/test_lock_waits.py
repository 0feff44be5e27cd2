"""greenline.hub.lock_waits: what counts as waiting for what another request holds."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress

import gevent
import pytest
from gevent.thread import LockType

from greenline.hub import lock_waits
from greenline.hub.handlers import Handlers


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    """Count for the length of a test."""
    before = LockType.acquire
    lock_waits.install()
    yield
    LockType.acquire = before


def held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


WAITS: dict[str, Callable[[], object]] = {
    "a lock": lambda: held().acquire(timeout=0.1),
    "a condition": lambda: in_condition(),
    "a semaphore": lambda: threading.Semaphore(0).acquire(timeout=0.1),
}


def in_future() -> None:
    with suppress(TimeoutError):
        Future().result(timeout=0.1)


def joined() -> None:
    thread = threading.Thread(target=time.sleep, args=(0.1,))
    thread.start()
    thread.join()


def in_condition() -> None:
    condition = threading.Condition()
    with condition:
        condition.wait(0.1)


@pytest.mark.parametrize("what", WAITS)
def test_a_handler_that_waits_for_another_is_counted(what: str) -> None:
    """As long as it waits, and not afterwards, whether it got what it waited for or not."""
    handlers = Handlers()
    waiting = gevent.spawn(handlers.run, WAITS[what])
    gevent.sleep(0.02)
    assert lock_waits.waiting() == 1
    waiting.join(10)
    assert lock_waits.waiting() == 0


@pytest.mark.parametrize(
    "wait",
    [
        lambda: time.sleep(0.1),
        lambda: held().acquire(False),
        lambda: futures.wait([Future()], timeout=0.1),
        lambda: in_future(),
        lambda: joined(),
    ],
    ids=["a timer", "an attempt", "futures", "a future", "a thread"],
)
def test_what_no_other_request_ends_is_not(wait: Callable[[], object]) -> None:
    """More requests in progress cost it nothing."""
    handlers = Handlers()
    waiting = gevent.spawn(handlers.run, wait)
    gevent.sleep(0.02)
    assert lock_waits.waiting() == 0
    waiting.join(10)


def test_a_greenlet_that_serves_no_request_is_not() -> None:
    """A thread of the application's own, for instance."""
    waiting = gevent.spawn(WAITS["a lock"])
    gevent.sleep(0.02)
    assert lock_waits.waiting() == 0
    waiting.join(10)


def test_the_lock_is_still_a_lock() -> None:
    """It excludes, times out, refuses what threading's own refuses, and survives a kill."""
    lock = threading.Lock()
    assert lock.acquire()
    assert not lock.acquire(False)
    assert not lock.acquire(timeout=0.01)
    with pytest.raises(ValueError, match="timeout"):
        lock.acquire(False, 1)
    victim = gevent.spawn(lock.acquire)
    gevent.sleep(0.01)
    victim.kill()
    lock.release()
    with lock:
        assert lock.locked()
    with pytest.raises(RuntimeError):
        lock.release()
