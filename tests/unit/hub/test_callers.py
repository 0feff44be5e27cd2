"""greenline.hub.callers: a call in an offload thread is one of the greenlet that made it."""

import gc
import threading
from contextvars import ContextVar
from typing import Any
from weakref import ref

import gevent
import pytest
from gevent.monkey import get_original

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.hub.thread_locks import Event
from greenline.offload import threads
from tests.helpers.support import wait_until

LIMIT_S = 10.0


class _Made(threading.local):
    """A thread-local with values of its own."""

    def __init__(self) -> None:
        self.by = threading.get_ident()


@pytest.mark.parametrize("run", [threads.run, threads.OwnThread().call], ids=["run", "own"])
def test_a_call_has_its_caller_s_identity(run: Any) -> None:
    """Also for an RLock that the caller holds, and a thread that it had not asked for before."""
    lock = threading.RLock()

    def identity() -> tuple[int, threading.Thread]:
        with lock:
            return threading.get_ident(), threading.current_thread()

    def call() -> None:
        with lock:
            assert run(identity) == identity()

    with gevent.Timeout(LIMIT_S):
        gevent.joinall([gevent.spawn(call) for _ in range(3)], raise_error=True)
    assert run(identity) == identity()


def test_a_call_has_its_caller_s_thread_locals() -> None:
    """What it changes and what it adds is the caller's, and no other greenlet's."""
    own = threads.OwnThread()
    before, added, made = threading.local(), threading.local(), _Made()

    def change() -> int:
        before.value += 1
        added.value = object()
        return made.by

    def call() -> None:
        before.value = 1
        assert own.call(change) == threading.get_ident() == made.by
        assert before.value == 2
        first = added.value
        assert own.call(lambda: added.value) is first

    def look() -> list[bool]:
        return [hasattr(each, "value") for each in (before, added)]

    def call_another() -> None:
        assert own.call(look) == look() == [False, False]
        assert own.call(lambda: made.by) == threading.get_ident()

    for each in (call, call_another, call):
        gevent.spawn(each).get(timeout=LIMIT_S)
    assert own.call(look) == [False, False]


def test_a_call_of_a_request_in_a_native_thread_has_its_thread_locals() -> None:
    """Those of before as well: a function of sqlite asks for the transaction of its request."""
    places, own = threads.Places(1), threads.OwnThread()
    before, made = threading.local(), _Made()

    def change() -> int:
        before.value += 1
        return made.by

    def request() -> None:
        assert own.call(change) == threading.get_ident() == made.by
        assert before.value == 2

    def call() -> None:
        before.value = 1
        assert made.by == threading.get_ident()
        places.run(LIMIT_S, request)
        assert before.value == 2
        assert own.call(change) == made.by
        assert before.value == 3

    for _ in range(2):
        gevent.spawn(call).get(timeout=LIMIT_S)
    assert own.call(lambda: hasattr(before, "value")) is False


def test_added_values_end_with_the_caller() -> None:
    added: Any = threading.local()
    ended: list[int] = []

    class Value:
        def __del__(self) -> None:
            ended.append(1)

    def add() -> None:
        added.value = Value()

    gevent.spawn(threads.run, add).get(timeout=LIMIT_S)
    gc.collect()
    wait_until(lambda: ended, "the end of the greenlet's value")


def test_a_call_may_set_variables_of_its_caller() -> None:
    """As a function that binds what the log shows, or activates a language."""
    variable = ContextVar[int]("variable")

    def call() -> None:
        threads.run(variable.set, 1)
        assert variable.get() == 1

    gevent.spawn(call).get(timeout=LIMIT_S)


def test_a_call_that_is_left_has_none_of_the_thread_locals() -> None:
    """Its greenlet may use them; the id stays, as the call has to release its locks."""
    local, lock = threading.local(), threading.RLock()
    seen: list[Any] = []
    is_left = get_original("threading", "Event")()

    def work() -> None:
        with lock:
            seen.append(local.value)
            is_left.wait(LIMIT_S)
            seen.append(hasattr(local, "value"))

    def call() -> None:
        local.value = 1
        with pytest.raises(DeadlineExceeded), deadline.limit(1.5):  # it has begun before
            threads.run(work)
        assert local.value == 1

    gevent.spawn(call).get(timeout=LIMIT_S)
    is_left.set()
    wait_until(lambda: len(seen) == 2, "the end of the call")
    assert seen == [1, False]
    with gevent.Timeout(LIMIT_S), lock:
        pass


def test_a_call_that_goes_on_keeps_its_caller() -> None:
    """A new greenlet with the same id would enter an RLock that the call holds."""
    has_begun, is_left = Event(), get_original("threading", "Event")()

    def work() -> None:
        has_begun.set()
        is_left.wait(LIMIT_S)

    caller = gevent.spawn(threads.run, work)
    has_begun.wait(LIMIT_S)
    caller.kill()
    killed = ref(caller)
    del caller
    gevent.sleep(0.01)
    gc.collect()
    is_kept = killed() is not None
    is_left.set()
    assert is_kept
    wait_until(lambda: killed() is None, "the end of the call")
