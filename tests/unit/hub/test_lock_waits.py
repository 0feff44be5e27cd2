"""greenline.hub.lock_waits: what counts as waiting for what another request holds."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import closing, suppress
from unittest.mock import Mock

import gevent
import pytest
from sqlalchemy.exc import TimeoutError as SQLAlchemyTimeout
from sqlalchemy.pool import QueuePool

from greenline.hub import lock_waits
from greenline.hub.handlers import Handlers
from greenline.hub.thread_locks import Lock


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    """Count for the length of a test."""
    before = Lock._wait, threading.Condition.wait
    lock_waits.install()
    yield
    Lock._wait, threading.Condition.wait = before  # type: ignore[method-assign]


def held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


WAITS: dict[str, Callable[[], object]] = {
    "a lock": lambda: held().acquire(timeout=0.5),
    "a semaphore": lambda: threading.Semaphore(0).acquire(timeout=0.5),
    "SQLAlchemy's pool": lambda: in_sqlalchemy(),
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
        condition.wait_for(lambda: False, 0.1)


def in_queue() -> None:
    with suppress(queue.Empty):
        queue.Queue().get(timeout=0.1)


def in_barrier() -> None:
    with suppress(threading.BrokenBarrierError):
        threading.Barrier(2).wait(0.1)


def in_sqlalchemy() -> None:
    pool = QueuePool(Mock, pool_size=1, max_overflow=0, timeout=0.5)
    with closing(pool.connect()), suppress(SQLAlchemyTimeout):
        pool.connect()


@pytest.mark.parametrize("what", WAITS)
def test_a_handler_that_waits_for_another_is_counted(what: str) -> None:
    """As long as it waits, and not afterwards, whether it got what it waited for or not."""
    handlers = Handlers()
    waiting = gevent.spawn(handlers.run, WAITS[what])
    gevent.sleep(0)  # it waits by then, and no timer has ended it
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
        lambda: in_condition(),
        lambda: in_queue(),
        lambda: in_barrier(),
    ],
    ids=[
        "a timer",
        "an attempt",
        "futures",
        "a future",
        "a thread",
        "a condition",
        "a queue",
        "a barrier",
    ],
)
def test_what_no_other_request_ends_is_not(wait: Callable[[], object]) -> None:
    """More requests in progress cost it nothing, or bring what it waits for."""
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
