"""Calls in native threads: side by side, in turn for one owner, and left by who is interrupted."""

from collections.abc import Callable
from time import monotonic
from typing import Any

import gevent
import pytest
from gevent.lock import Semaphore
from gevent.monkey import get_original

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.offload import threads
from tests.helpers import support
from tests.helpers.support import wait_until

sleep = get_original("time", "sleep")


def test_calls_run_side_by_side() -> None:
    """Thirty that block are more than gevent's pool has threads, and resolve no names less."""
    begun: list[bool] = []
    end = get_original("_thread", "allocate_lock")()
    end.acquire()

    def block() -> None:
        begun.append(True)
        with end:
            pass

    with gevent.Timeout(30):
        calls = [gevent.spawn(threads.run, block) for _ in range(30)]
        wait_until(lambda: len(begun) == 30, "all of them", 20)
        gevent.get_hub().threadpool.apply(int)
        assert not any(call.ready() for call in calls)
        end.release()
        gevent.joinall(calls, raise_error=True)


def test_errors_and_keywords_pass() -> None:
    """The call is as if it were made here."""
    assert threads.run(int, "ff", base=16) == 255
    with pytest.raises(ValueError, match="invalid literal"):
        threads.run(int, "x")


def test_an_owner_has_one_thread_and_its_calls_run_in_turn() -> None:
    """What runs there may call again, at once."""
    own = threads.OwnThread()
    seen: list[Any] = []

    def note(number: int) -> None:
        sleep(0.01)
        seen.append((number, own.call(threads.get_ident)))

    gevent.joinall([gevent.spawn(own.call, note, number) for number in range(5)], raise_error=True)
    assert [number for number, _ in seen] == list(range(5))
    assert len({ident for _, ident in seen}) == 1


def test_who_is_interrupted_takes_back_a_call_that_has_not_begun() -> None:
    """And waits for the end of one that has, which is asked to end."""
    own = threads.OwnThread()
    begun: list[bool] = []
    ended: list[str] = []
    stop = get_original("_thread", "allocate_lock")()
    stop.acquire()

    def work() -> None:
        begun.append(True)
        stop.acquire()
        ended.append("work")

    def release() -> None:
        if not ended and stop.locked():
            stop.release()

    working = gevent.spawn(own.call, work, interrupt=release)
    wait_until(lambda: begun, "the call")
    waiting = gevent.spawn(own.call, ended.append, "waiting")
    gevent.sleep(0)
    waiting.kill(timeout=40)
    working.kill(timeout=40)
    assert ended == ["work"]
    assert own.is_idle
    assert own.call(int) == 0


def test_a_thread_runs_beside_a_hub_that_is_busy() -> None:
    """The hub lets the interpreter's lock go all the time, and never for long."""
    ended: list[int] = []

    def compute() -> None:
        while not ended:
            until = monotonic() + 0.002
            while monotonic() < until:
                pass
            gevent.sleep(0.001)

    def fetch() -> None:
        for _ in range(500):  # rows, as a driver lets the lock go for each of them
            sleep(0)

    busy = [gevent.spawn(compute) for _ in range(4)]
    try:
        with gevent.Timeout(10):
            threads.run(fetch)
    finally:
        ended.append(1)
        gevent.joinall(busy, raise_error=True)


def test_what_runs_in_a_thread_needs_no_second_one() -> None:
    """Its turn may be the only one; also where the thread has waited for something, in a hub."""
    turns = threads.Turns(1, is_left=True)
    turns.turns = Semaphore(1)

    def nested() -> int:
        gevent.sleep(0)
        return turns.run(threads.run, threads.get_ident)

    with gevent.Timeout(10):
        assert turns.run(nested) != threads.get_ident()


def test_an_interrupted_call_is_left_or_waited_for() -> None:
    """As its C code allows."""
    ended: list[str] = []

    def work(name: str) -> None:
        # Longer than a busy machine stops this process, which sees both ends at once then.
        sleep(1.2)
        ended.append(name)

    turns = threads.Turns(1, is_left=False)
    for run, name in ((threads.run, "run"), (threads.run_to_the_end, "end"), (turns.run, "turn")):
        ended.clear()
        with pytest.raises(DeadlineExceeded), deadline.limit(0.05):
            run(work, name)
        assert ended == ([] if name == "run" else [name])
        wait_until(lambda: ended, "the end of the call")


def test_a_destructor_waits_for_no_lock() -> None:
    """A collection may call it where the thread holds the lock already."""
    own = threads.OwnThread()
    own.call(int)
    thread: Any = own._thread
    held, other = [object()], [object()]
    with thread._lock:
        own.drop(held)
        own.release()
    assert held
    wait_until(lambda: not held, "the hub, which does it later")
    own.drop(other)
    wait_until(lambda: not other, "another thread, as this one has ended")


def test_the_deadline_ends_the_wait() -> None:
    """The call itself goes on."""
    end = get_original("_thread", "allocate_lock")()
    end.acquire()
    with pytest.raises(DeadlineExceeded), deadline.limit(0.1):
        threads.run(end.acquire)
    end.release()


def test_an_idle_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner has another one for the next call."""
    monkeypatch.setattr(threads, "IDLE_S", 0.05)
    own = threads.OwnThread()
    for _ in range(3):
        assert own.call(int) == 0
        thread = own._thread
        assert thread is not None
        with gevent.Timeout(30):
            while not thread.has_ended or thread in threads._alive:
                gevent.sleep(0.01)


def test_a_thread_that_cannot_start_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the process has as many threads as it may have."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads.native, "start_new_thread", refuse)
    before = set(threads._alive)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.Thread()
    assert set(threads._alive) == before


def test_requests_that_wait_leave_their_places_to_others() -> None:
    """Those that wait in C code keep them."""
    places = threads.Places(1)
    seen: list[str] = []

    def in_the_hub() -> None:
        while len(seen) < 2:  # until the other one has the place
            gevent.sleep(0.01)

    def in_c() -> None:
        sleep(0.1)

    def request(name: str, wait: Callable[[], None]) -> None:
        seen.append(name)
        wait()
        seen.append(name)

    for wait, first in ((in_the_hub, "ab"), (in_c, "aa")):
        running = [gevent.spawn(places.run, 60, request, name, wait) for name in "ab"]
        gevent.joinall(running, timeout=10, raise_error=True)
        # Which of two that waited equally long goes on first is not promised.
        assert "".join(seen[:2]) == first
        assert sorted(seen) == list("aabb")
        assert not places.is_used()
        seen.clear()


def test_who_goes_on_waits_for_a_place_but_not_for_long() -> None:
    """Who has it may wait in C code for what this one holds."""
    places = threads.Places(1)
    is_free = get_original("_thread", "allocate_lock")()
    ended: list[bool] = []

    def first() -> None:
        with is_free:
            gevent.sleep(0.01)
            ended.append(places.is_used())

    def second() -> None:
        is_free.acquire()

    running = [gevent.spawn(places.run, 60, each) for each in (first, second)]
    gevent.joinall(running, timeout=10, raise_error=True)
    assert ended == [True]
    assert not places.is_used()


def test_a_short_request_does_not_wait_for_long_ones() -> None:
    """It goes on without a place, of which it takes none from the others."""
    places = threads.Places(1)
    end = get_original("_thread", "allocate_lock")()
    end.acquire()
    long = gevent.spawn(places.run, 60, end.acquire)
    gevent.sleep(0)
    with gevent.Timeout(10):
        assert places.run(0.01, int) == 0
    assert not long.ready()
    end.release()
    long.get(timeout=10)
    assert not places.is_used()


def test_more_than_a_number_of_requests_stay_in_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has a hub of its own, with descriptors."""
    monkeypatch.setattr(threads, "MAX_REQUESTS", 3)
    places = threads.Places(8)
    idents: list[int] = []

    def request() -> None:
        idents.append(threads.get_ident())
        gevent.sleep(0.1)

    running = [gevent.spawn(places.run, 60, request) for _ in range(8)]
    gevent.joinall(running, timeout=10, raise_error=True)
    assert idents.count(threads.get_ident()) == 8 - 3
    assert not places.is_used()


SCRIPT = """
import atexit
atexit.register(lambda: print(len(threads._alive)))  # is called last
from greenline.patch import patch_all; patch_all()
import gevent
from greenline.offload import threads
places = threads.Places(4)
gevent.joinall([gevent.spawn(places.run, 60, gevent.sleep, 0.01) for _ in range(4)])
print(len(threads._alive))
"""


def test_idle_threads_end_before_the_interpreter() -> None:
    """It would drop their hubs in another thread, and crash."""
    assert support.run(["python", "-c", SCRIPT], {}).stdout.split() == ["4", "0"]
