"""Locks and events that greenlets and native threads share, as code in an offload thread does."""

import os
import pickle
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.offload import threads
from tests.helpers.support import wait_until

TIMES = 200
LIMIT_S = 10.0


def in_greenlets_and_threads(*works: Callable[[int], None]) -> None:
    """Call each of *works* with a number, in four threads and four greenlets at once."""
    owners = [threads.OwnThread() for _ in range(4)]
    calls = [
        gevent.spawn(own.call, works[number % len(works)], number)
        for number, own in enumerate(owners)
    ]
    calls += [gevent.spawn(works[number % len(works)], number) for number in range(4, 8)]
    with gevent.Timeout(LIMIT_S):
        gevent.joinall(calls, raise_error=True)


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_a_lock_keeps_out_the_others(kind: Callable[[], Any]) -> None:
    """No count is lost, whether its holder computes, waits or lets the others run."""
    lock, count = kind(), 0

    def work(_: int) -> None:
        nonlocal count
        for number in range(TIMES):
            with lock:
                before = count
                if number % 7 == 0:
                    time.sleep(0)
                if number % 50 == 0:
                    time.sleep(0.0005)
                count = before + 1

    in_greenlets_and_threads(work)
    assert count == 8 * TIMES


@pytest.mark.parametrize("make", [lambda: queue.Queue(3), queue.SimpleQueue])
def test_a_queue_passes_items_between_them(make: Callable[[], Any]) -> None:
    """Each once; the short one makes both sides wait."""
    items, got = make(), list[int]()

    def put(_: int) -> None:
        for number in range(TIMES):
            items.put(number)

    def get(_: int) -> None:
        for _ in range(TIMES):
            got.append(items.get())

    in_greenlets_and_threads(put, get)
    assert sorted(got) == sorted(list(range(TIMES)) * 4)


def test_an_executor_serves_both() -> None:
    """Its workers are greenlets, if a greenlet has submitted the first work."""
    with ThreadPoolExecutor(3) as executor:
        list(executor.map(int, range(3)))

        def work(_: int) -> None:
            assert sum(executor.submit(int, 5).result() for _ in range(20)) == 100

        in_greenlets_and_threads(work)


def test_a_simple_queue_has_the_standard_library_s_errors() -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    for call in (items.get_nowait, partial(items.get, timeout=0.01), partial(items.get, False)):
        with pytest.raises(queue.Empty):
            call()
        with pytest.raises(queue.Empty):
            threads.run(call)
    with pytest.raises(ValueError, match="'timeout' must be a non-negative number"):
        items.get(timeout=-1)
    items.put_nowait(3)
    assert (items.qsize(), items.empty(), items.get(), items.empty()) == (1, False, 3, True)


def test_a_condition_notifies_them_in_turn() -> None:
    condition, turn = threading.Condition(), 0

    def work(mine: int) -> None:
        nonlocal turn
        for _ in range(TIMES // 4):
            with condition:
                while turn != mine:
                    condition.wait()
                turn = (turn + 1) % 8
                condition.notify_all()

    in_greenlets_and_threads(work)
    assert turn == 0


def test_an_event_wakes_all_that_wait() -> None:
    events = [threading.Event() for _ in range(TIMES // 4)]

    def work(mine: int) -> None:
        for number, event in enumerate(events):
            if number % 8 == mine:
                time.sleep(0.001)
                event.set()
            else:
                assert event.wait()

    in_greenlets_and_threads(work)


def test_a_function_of_sqlite_takes_a_lock_of_the_application() -> None:
    lock, connections = threading.Lock(), []

    def locked(value: int) -> int:
        with lock:
            time.sleep(0.002)
            return value

    for _ in range(6):
        connection = sqlite3.connect(":memory:")
        connection.create_function("locked", 1, locked)
        connections.append(connection)
    with gevent.Timeout(LIMIT_S):
        calls = [
            gevent.spawn(connection.execute, f"select locked({number})")
            for number, connection in enumerate(connections)
        ]
        gevent.joinall(calls, raise_error=True)
    assert [call.value.fetchone() for call in calls] == [(number,) for number in range(6)]


@pytest.fixture
def held() -> Iterator[Any]:
    """A lock that is held."""
    lock = threading.Lock()
    lock.acquire()
    yield lock
    if lock.locked():
        lock.release()


def test_waiters_get_a_lock_in_order(held: Any) -> None:
    got: list[int] = []

    def take(number: int) -> None:
        with held:
            got.append(number)

    waiting = [gevent.spawn(take, number) for number in range(5)]
    gevent.sleep(0)
    held.release()
    gevent.joinall(waiting, raise_error=True)
    assert got == [0, 1, 2, 3, 4]


def test_a_faster_greenlet_takes_no_ones_place(held: Any) -> None:
    """Who was first waits on as the first one."""
    got: list[int] = []

    def take(number: int) -> None:
        with held:
            got.append(number)

    waiting = [gevent.spawn(take, number) for number in range(3)]
    gevent.sleep(0)
    held.release()
    assert held.acquire(False)  # before the first one runs
    gevent.sleep(0)
    gevent.sleep(0)
    held.release()
    gevent.joinall(waiting, raise_error=True)
    assert got == [0, 1, 2]


@pytest.mark.parametrize("is_woken", [False, True])
def test_an_interrupted_waiter_leaves_the_lock_to_the_next(held: Any, is_woken: bool) -> None:
    """Before it is woken, and after that."""
    first, second = gevent.spawn(held.acquire), gevent.spawn(held.acquire)
    gevent.sleep(0)
    first.kill(block=not is_woken)
    held.release()  # wakes the first one, if it is not dead yet
    assert second.get(timeout=LIMIT_S)
    assert held.locked()


def test_a_release_does_not_go_to_a_wait_that_has_ended(held: Any) -> None:
    """A waiter that is passed over at the moment of its timeout waits no more."""
    second = []

    def holder() -> None:
        gevent.sleep(0.02)
        busy_until = time.monotonic() + 0.1
        while time.monotonic() < busy_until:  # the timeout passes meanwhile
            pass
        held.release()
        assert held.acquire()
        gevent.sleep(0.05)
        held.release()

    def last() -> None:
        gevent.sleep(0.13)
        second.append(held.acquire(timeout=2))

    first = gevent.spawn(held.acquire, timeout=0.05)
    gevent.joinall([gevent.spawn(holder), first, gevent.spawn(last)], raise_error=True)
    assert [first.value, second] in ([False, [True]], [True, [False]])


@pytest.mark.parametrize("timeout", [0, 1e-9])
@pytest.mark.parametrize("kind", ["lock", "queue"])
def test_code_that_polls_lets_the_others_run(held: Any, kind: str, timeout: float) -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()

    def get() -> bool:
        try:
            return items.get(timeout=timeout) == 1
        except queue.Empty:
            return False

    def poll() -> None:
        while not (held.acquire(timeout=timeout) if kind == "lock" else get()):
            pass

    polling = gevent.spawn(poll)
    gevent.spawn_later(0.01, lambda: (items.put(1), held.release()))
    polling.get(timeout=LIMIT_S)


def test_who_takes_a_lock_again_at_once_does_not_keep_out_the_others() -> None:
    """As a thread that polls under a lock does; on threads the others get their turn."""
    lock, turns = threading.Lock(), 0

    def hold(_: int) -> None:
        while turns < 4 * 5:
            with lock:
                time.sleep(0.001)

    def ask(_: int) -> None:
        nonlocal turns
        for _ in range(5):
            with lock:
                turns += 1

    in_greenlets_and_threads(hold, ask)
    assert turns == 4 * 5


def test_a_waiter_whose_hub_stands_still_passes_the_lock_on(held: Any) -> None:
    """A greenlet that code in an offload thread has started, and left alone."""

    def leave_behind() -> None:
        gevent.spawn(held.acquire)
        gevent.sleep(0)

    threads.OwnThread().call(leave_behind)
    waiting = gevent.spawn(held.acquire)
    gevent.sleep(0)
    held.release()
    assert waiting.get(timeout=LIMIT_S)


def test_a_lock_that_a_standing_hub_does_not_take_is_taken_back(held: Any) -> None:
    """It was handed over, as others had been faster while that hub ran."""

    def leave_behind() -> None:
        gevent.spawn(held.acquire)
        gevent.sleep(0)

    threads.OwnThread().call(leave_behind)
    held._waits[0].was_passed_over = True
    waiting = gevent.spawn(held.acquire)
    gevent.sleep(0)
    held.release()
    assert waiting.get(timeout=LIMIT_S)


def test_a_stray_switch_ends_no_wait(held: Any) -> None:
    event = threading.Event()
    waiting = [gevent.spawn(held.acquire), gevent.spawn(event.wait)]
    gevent.sleep(0)
    for each in waiting:
        gevent.get_hub().loop.run_callback(each.switch)
    gevent.sleep(0.01)
    assert not any(each.ready() for each in waiting)
    held.release()
    event.set()
    assert [each.get(timeout=LIMIT_S) for each in waiting] == [True, True]


@pytest.mark.parametrize("kind", [threading.Lock, threading.Event, queue.SimpleQueue])
def test_they_are_not_copied(kind: Callable[[], Any]) -> None:
    """A copy in another process would wait for ever."""
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(kind())


def test_a_thread_that_an_offload_thread_starts_can_be_joined() -> None:
    """From there and from the main hub; it goes on when the offload thread does other work."""
    seen: list[int] = []

    def start(wait: bool) -> threading.Thread:
        thread = threading.Thread(target=lambda: (time.sleep(0.01), seen.append(1)))
        thread.start()
        if wait:
            thread.join()
        return thread

    own = threads.OwnThread()
    with gevent.Timeout(LIMIT_S):
        assert not own.call(start, True).is_alive()
        own.call(start, False).join()
    assert seen == [1, 1]


def test_a_wait_ends_at_its_timeout(held: Any) -> None:
    assert not held.acquire(timeout=0.01)
    assert not threads.run(held.acquire, timeout=0.01)
    assert not held.acquire(False)
    assert not threading.Event().wait(0.01)
    assert not threads.run(threading.Event().wait, 0.01)
    held.release()
    assert held.acquire(timeout=0)


def test_a_wait_ends_at_the_deadline(held: Any) -> None:
    with pytest.raises(DeadlineExceeded), deadline.limit(0.05):
        held.acquire()
    held.release()
    assert held.acquire(False)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((False, 1), ValueError), ((True, -2), ValueError), ((True, 1e12), OverflowError)],
)
def test_bad_arguments_are_refused_as_the_standard_library_does(
    arguments: tuple[bool, float], error: type[Exception]
) -> None:
    """With the same words, on a lock that is free."""
    native = get_original("_thread", "allocate_lock")()
    with pytest.raises(error) as expected:
        native.acquire(*arguments)
    with pytest.raises(error) as found:
        threading.Lock().acquire(*arguments)
    assert str(found.value) == str(expected.value)


def test_a_lock_that_is_not_held_cannot_be_released() -> None:
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        threading.Lock().release()


def test_an_event_that_is_set_and_cleared_has_woken_who_waits() -> None:
    event = threading.Event()
    waiting = gevent.spawn(event.wait)
    gevent.sleep(0)
    event.set()
    event.clear()
    assert waiting.get(timeout=LIMIT_S)
    assert not event.is_set()


def test_a_forked_child_does_not_wake_the_greenlets_of_its_parent(held: Any) -> None:
    """The child's own greenlet gets the lock, which waits behind one of the parent's."""
    waiting = gevent.spawn(held.acquire)
    gevent.sleep(0)
    child = os.fork()
    if child == 0:
        mine = gevent.spawn(held.acquire, timeout=2)
        gevent.sleep(0)
        held.release()
        mine.join()
        os._exit(0 if mine.value and not waiting.ready() else 1)
    wait_until(lambda: os.waitpid(child, os.WNOHANG) == (child, 0), "the child's end")
    assert not waiting.ready()
