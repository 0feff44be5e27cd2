"""greenline.cache.cache: one load for all who ask at once, and nothing older than it may be."""

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import gevent
import msgspec
import pytest
from gevent.event import Event

from greenline.cache import Cache, NotKept
from greenline.cache.cache import RETRY_S
from greenline.cache.flight import NotShared
from greenline.errors import DeadlineExceeded, StoreDown
from greenline.hub import deadline
from greenline.hub.request_timeout import WaitTimeout
from greenline.telemetry import counters
from tests.helpers.clock import Clock
from tests.helpers.support import CHECKOUT, IS_LONG, wait_until

MB = 1 << 20
BERLIN = ZoneInfo("Europe/Berlin")
request: ContextVar[str] = ContextVar("request", default="none")


class Loads:
    """A function that counts its calls, and waits in each until it may go on."""

    def __init__(self, blocks: bool = False) -> None:
        self.count = 0
        self.may_end = Event()
        self.error: BaseException | None = None
        if not blocks:
            self.may_end.set()

    def __call__(self) -> str:
        self.count += 1
        number, error = self.count, self.error
        self.may_end.wait()
        if error is not None:
            raise error
        return f"load {number}"


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


class Conflict(Exception):
    """An error that can be pickled and not unpickled."""

    def __init__(self, what: str, *, why: str = "") -> None:
        super().__init__(what, why)


def spawn(count: int, function: Callable[[], Any]) -> list[Any]:
    """Start as many greenlets, and return when all of them wait."""
    jobs = [gevent.spawn(function) for _ in range(count)]
    gevent.sleep(0)
    gevent.sleep(0)
    return jobs


def test_a_thousand_who_ask_at_once_cause_one_load() -> None:
    """And get its value; another key is loaded meanwhile."""
    cache, load = Cache(MB, 60), Loads(blocks=True)
    jobs = spawn(1_000, lambda: cache.get_or_load("k", load))
    assert cache.get_or_load("other", lambda: 7) == 7
    load.may_end.set()
    gevent.joinall(jobs, raise_error=True)
    assert {job.value for job in jobs} == {"load 1"}
    assert cache.get_or_load("k", load) == "load 1"
    stats = cache.stats()
    assert (load.count, stats["waits"], stats["loads"], stats["hits"]) == (1, 999, 2, 1)


def test_a_value_is_looked_up_without_a_load(clock: Clock) -> None:
    """As long as it is fresh; only what is found is counted."""
    cache = Cache(MB, 60, stale_s=60, stale_if_error_s=60, clock=clock)
    assert cache.get("k") is None
    cache.get_or_load("k", lambda: [1], tags=["t"])
    clock.now = 59.9
    assert cache.get("k") == [1]
    assert cache.get("k") is not cache.get("k")  # it can change
    clock.now = 60.0
    assert cache.get("k") is None
    clock.now = 0.0
    cache.invalidate(tag="t")
    assert cache.get("k") is None
    stats = cache.stats()
    assert (stats["hits"], stats["loads"], stats["stale"], stats["waits"]) == (3, 1, 0, 0)


def test_what_is_loaded_now_is_not_looked_up() -> None:
    cache, load = Cache(MB, 60), Loads(blocks=True)
    [job] = spawn(1, lambda: cache.get_or_load("k", load))
    assert cache.get("k") is None
    load.may_end.set()
    job.get()
    assert cache.get("k") == "load 1"


@pytest.mark.parametrize(("key", "error"), [("k" * 2_000, ValueError), (7, TypeError)])
def test_a_value_is_looked_up_by_the_same_keys(key: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Cache(MB, 60).get(key)


def test_threads_share_it_as_greenlets_do() -> None:
    """Also native ones: the code under gthread is the same."""
    program = """
import threading
from greenline.cache import Cache
cache, calls, may_end = Cache(1 << 20, 60), [], threading.Event()
def load():
    calls.append(1)
    may_end.wait(20)
    return "value"
found = []
threads = [
    threading.Thread(target=lambda: found.append(cache.get_or_load("k", load))) for _ in range(50)
]
for each in threads: each.start()
while cache.stats()["waits"] < 49: pass
may_end.set()
for each in threads: each.join()
print(len(calls), set(found), len(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("1 {'value'} 50\n", "")


def test_a_failure_goes_to_all_who_wait_and_is_not_kept() -> None:
    """The next one tries anew."""
    cache, load = Cache(MB, 60), Loads(blocks=True)
    load.error = StoreDown()
    jobs = spawn(20, lambda: cache.get_or_load("k", load))
    load.may_end.set()
    gevent.joinall(jobs)
    assert {type(job.exception) for job in jobs} == {StoreDown}
    assert load.count == 1
    load.error = None
    assert cache.get_or_load("k", load) == "load 2"


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "deadline"])
def test_another_one_takes_over_from_a_load_that_is_interrupted(is_killed: bool) -> None:
    """A deadline or a kill says nothing about the value."""
    cache, load = Cache(MB, 60), Loads(blocks=True)

    def ask() -> str:
        return cache.get_or_load("k", load)

    def hurry() -> str:
        with deadline.limit(60 if is_killed else 0.05):
            return ask()

    first = gevent.spawn(hurry)
    gevent.sleep(0)
    others = spawn(5, ask)
    if is_killed:
        first.kill(block=False)
    wait_until(lambda: load.count == 2, "the second load")
    load.may_end.set()
    gevent.joinall(others, raise_error=True)
    assert {job.value for job in others} == {"load 2"}
    assert load.count == 2
    first.join()
    assert cache.stats()["failures"] == 0


def wait_too_long() -> None:
    """Wait beyond a deadline of this function."""
    with deadline.limit(0.02):
        deadline.wait_in(gevent.sleep, 30)


def end_too_late() -> None:
    """Wait beyond a timeout of this function."""
    with gevent.Timeout(0.02):
        gevent.sleep(30)


def be_cancelled() -> None:
    """Fail as a query does that the server has ended."""
    gevent.sleep(0.02)
    raise DeadlineExceeded


@pytest.mark.parametrize("load", [wait_too_long, end_too_late, be_cancelled])
@pytest.mark.parametrize("limit_s", [60, None], ids=["with a deadline", "without one"])
def test_a_limit_of_the_load_is_a_failure_for_all(
    load: Callable[[], None], limit_s: float | None
) -> None:
    """They would fail by it one after the other."""
    cache = Cache(MB, 60)

    def load_for_all() -> None:
        # The hub may look at its timers before the last caller has begun.
        wait_until(lambda: cache.stats()["waits"] == 19, "the others to wait")
        load()

    def ask() -> None:
        if limit_s is None:
            cache.get_or_load("k", load_for_all)
        else:
            with deadline.limit(limit_s):
                cache.get_or_load("k", load_for_all)

    jobs = spawn(20, ask)
    gevent.joinall(jobs, timeout=10)
    assert {type(job.exception) for job in jobs} <= {DeadlineExceeded, gevent.Timeout}
    stats = cache.stats()
    assert (stats["loads"], stats["waits"], stats["failures"]) == (1, 19, 1)


def test_a_timeout_around_the_caller_that_loads_is_its_own() -> None:
    cache, load = Cache(MB, 60), Loads(blocks=True)

    def hurry() -> str:
        with gevent.Timeout(0.02):
            return cache.get_or_load("k", load)

    (first,) = spawn(1, hurry)
    others = spawn(5, lambda: cache.get_or_load("k", load))
    wait_until(lambda: load.count == 2, "the second load")
    load.may_end.set()
    assert {job.get(timeout=10) for job in others} == {"load 2"}
    assert isinstance(first.exception, gevent.Timeout)


def test_a_caller_that_waits_for_several_loads_counts_once() -> None:
    cache, load = Cache(MB, 60), Loads(blocks=True)
    jobs = spawn(10, lambda: cache.get_or_load("k", load))
    for number, job in enumerate(jobs[:5], 1):
        wait_until(lambda number=number: load.count == number, "the next load")
        job.kill()
    wait_until(lambda: load.count == 6, "the last load")
    load.may_end.set()
    gevent.joinall(jobs[5:], timeout=10, raise_error=True)
    assert cache.stats()["waits"] == 9


def test_the_deadline_of_one_who_waits_is_its_own() -> None:
    """It ends alone."""
    cache, load = Cache(MB, 60), Loads(blocks=True)
    (first,) = spawn(1, lambda: cache.get_or_load("k", load))
    with pytest.raises(DeadlineExceeded), deadline.limit(0.05):
        cache.get_or_load("k", load)
    load.may_end.set()
    assert first.get(timeout=10) == "load 1"


def test_a_load_that_asks_for_its_own_key_is_an_error() -> None:
    """It would wait for itself."""
    cache = Cache(MB, 60)

    def load() -> Any:
        return cache.get_or_load("k", load)

    with pytest.raises(RuntimeError, match="asks for 'k' itself"):
        cache.get_or_load("k", load)
    assert cache.get_or_load("k", lambda: 1) == 1


def test_a_value_ages_from_the_beginning_of_its_load(clock: Clock) -> None:
    """A slow load makes no value young."""
    cache, load = Cache(MB, 10, clock=clock), Loads(blocks=True)
    (job,) = spawn(1, lambda: cache.get_or_load("k", load))
    clock.now = 9.0
    load.may_end.set()
    assert job.get(timeout=10) == "load 1"
    assert cache.get_or_load("k", load) == "load 1"
    clock.now = 10.0
    assert cache.get_or_load("k", load) == "load 2"
    assert cache.get_or_load("mine", load, ttl_s=1) == "load 3"
    clock.now = 11.0
    assert cache.get_or_load("mine", load) == "load 4"


def test_a_stale_value_is_returned_while_one_loads(clock: Clock) -> None:
    """Apart from the request that asked, and only within its time."""
    cache, load, seen = Cache(MB, 10, stale_s=5, clock=clock), Loads(), []
    assert cache.get_or_load("k", load) == "load 1"
    load.may_end.clear()
    clock.now = 14.0

    def look() -> str:
        seen.append((request.get(), deadline.remaining()))
        return load()

    def ask() -> str:
        request.set("mine")
        with deadline.limit(60):
            return cache.get_or_load("k", look)

    assert [gevent.spawn(ask).get() for _ in range(3)] == ["load 1"] * 3
    wait_until(lambda: load.count == 2, "the load beside")
    load.may_end.set()
    wait_until(lambda: cache.get_or_load("k", look) == "load 2", "the new value")
    assert seen == [("none", None)]
    assert cache.stats()["stale"] >= 3
    clock.now = 29.0
    assert cache.get_or_load("k", load) == "load 3"


def test_a_stale_value_stays_if_its_load_beside_fails(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """With a line in the log; it is tried again after a pause, and not at each call."""
    cache, load = Cache(MB, 10, stale_s=5, clock=clock), Loads()
    cache.get_or_load("k", load)
    clock.now, load.error = 11.0, StoreDown()
    assert cache.get_or_load("k", load) == "load 1"
    wait_until(lambda: "no new value" in caplog.text, "the line")
    for clock.now in (11.1, 11.9):
        assert cache.get_or_load("k", load) == "load 1"
        gevent.sleep(0.01)  # a load of its own would begin
        assert load.count == 2
    clock.now = 11.1 + RETRY_S
    assert cache.get_or_load("k", load) == "load 1"
    wait_until(lambda: load.count == 3, "another try")
    assert cache.stats()["stale"] == 4


def test_a_stale_value_replaces_an_error(clock: Clock) -> None:
    """For the one that loads and for those who wait, within its time."""
    cache, load = Cache(MB, 10, stale_if_error_s=5, clock=clock), Loads()
    cache.get_or_load("k", load)
    clock.now, load.error = 14.0, StoreDown()
    load.may_end.clear()
    jobs = spawn(5, lambda: cache.get_or_load("k", load))
    load.may_end.set()
    assert {job.get() for job in jobs} == {"load 1"}
    assert load.count == 2
    clock.now = 15.0
    with pytest.raises(StoreDown):
        cache.get_or_load("k", load)


@pytest.mark.parametrize("by", ["key", "tag", "clear"])
def test_who_asks_after_an_invalidation_sees_nothing_older(by: str) -> None:
    """Neither a value that was kept, nor one whose load began before, which is not kept either."""
    cache, load = Cache(MB, 60), Loads(blocks=True)

    def ask() -> str:
        return cache.get_or_load("k", load, tags=["books", "book 1"])

    def invalidate() -> None:
        if by == "clear":
            cache.clear()
        else:
            cache.invalidate(**{by: "k" if by == "key" else "book 1"})

    (before,) = spawn(1, ask)
    invalidate()
    (after,) = spawn(1, ask)
    load.may_end.set()
    assert (before.get(), after.get()) == ("load 1", "load 2")
    assert cache.get_or_load("k", load) == "load 2"
    invalidate()
    assert cache._entries.find("k") is None
    assert (len(cache), cache._entries._tags) == (0, {})
    load.may_end.clear()
    (before,) = spawn(1, ask)
    invalidate()
    load.may_end.set()
    assert before.get() == "load 3"
    assert len(cache) == 0
    assert ask() == "load 4"


def test_however_many_writes_there_are_one_load_of_a_key_runs() -> None:
    """The next one begins at the end of that, and has all writes until then."""
    cache, running, most, began = Cache(MB, 60), 0, 0, 0

    def load() -> int:
        nonlocal running, most, began
        running, began = running + 1, began + 1
        most, number = max(most, running), began
        gevent.sleep(0.01)
        running -= 1
        return number

    jobs = []
    for _ in range(20):
        jobs += spawn(5, lambda: cache.get_or_load("k", load))
        cache.invalidate("k")
        gevent.sleep(0.003)
    numbers = [job.get(timeout=10) for job in jobs]
    assert (most, numbers) == (1, sorted(numbers))
    assert cache._invalid == {}


def test_the_end_of_an_older_load_is_not_that_of_the_one_after_an_invalidation() -> None:
    """Who asks then waits for the newer one, which later invalidations leave until it begins."""
    cache, old, new = Cache(MB, 60), Loads(blocks=True), Loads(blocks=True)
    (first,) = spawn(1, lambda: cache.get_or_load("k", old))
    cache.invalidate("k")
    (second,) = spawn(1, lambda: cache.get_or_load("k", new))
    cache.invalidate("k")
    cache.clear()
    assert new.count == 0
    old.may_end.set()
    assert first.get(timeout=10) == "load 1"
    (third,) = spawn(1, lambda: cache.get_or_load("k", new))
    new.may_end.set()
    assert (second.get(timeout=10), third.get(timeout=10), new.count) == ("load 1", "load 1", 1)
    assert cache.get_or_load("k", new) == "load 1"


def test_those_that_wait_for_a_turn_are_one_however_long_it_takes(clock: Clock) -> None:
    """Also where the load before it takes longer than a value is fresh."""
    cache, slow, new = Cache(MB, 1, clock=clock), Loads(blocks=True), Loads()
    jobs = spawn(1, lambda: cache.get_or_load("k", slow))
    cache.invalidate("k")
    for clock.now in (0.5, 2.0, 4.0, 8.0):
        jobs += spawn(3, lambda: cache.get_or_load("k", new))
    slow.may_end.set()
    assert [job.get(timeout=10) for job in jobs] == ["load 1"] * 13
    assert new.count == 1


def test_a_request_whose_time_is_up_fails_no_other_one() -> None:
    """Neither where it loads nor where it waits for its turn: another one takes over."""
    cache, load = Cache(MB, 60), Loads(blocks=True)
    first, second, third = (spawn(1, lambda: cache.get_or_load("k", load))[0] for _ in range(3))
    first.kill(WaitTimeout)
    wait_until(lambda: load.count == 2, "another load")
    cache.invalidate("k")
    fourth, fifth = (spawn(1, lambda: cache.get_or_load("k", load))[0] for _ in range(2))
    fourth.kill(WaitTimeout)
    gevent.sleep(0)
    load.may_end.set()
    for each in (first, fourth):
        with pytest.raises(WaitTimeout):
            each.get(timeout=10)
    assert {each.get(timeout=10) for each in (second, third)} == {"load 2"}
    assert fifth.get(timeout=10) == "load 3"


def test_a_stuck_load_that_was_invalidated_is_not_waited_for_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor for more than half of the caller's time; and a load may invalidate its own key."""
    cache, stuck = Cache(MB, 60), Loads(blocks=True)
    (first,) = spawn(1, lambda: cache.get_or_load("k", stuck))
    cache.invalidate("k")
    with deadline.limit(3.0):
        assert cache.get_or_load("k", deadline.remaining) > 0.3
    cache.invalidate("k")
    assert cache._invalid == {}  # the next one does not wait again
    (second,) = spawn(1, lambda: cache.get_or_load("k", stuck))
    cache.invalidate("k")
    monkeypatch.setattr("greenline.cache.flight.MAX_WAIT_S", 0.01)
    assert cache.get_or_load("k", Loads()) == "load 1"
    cache.invalidate("k")
    assert cache._invalid == {}  # the next one does not wait again
    stuck.may_end.set()
    assert (first.get(timeout=10), second.get(timeout=10)) == ("load 1", "load 2")

    def load() -> str:
        cache.invalidate("own")
        return cache.get_or_load("own", Loads())

    assert cache.get_or_load("own", load) == "load 1"


def test_a_tag_of_many_values_is_invalidated_in_one_step() -> None:
    """Their memory is that of the next values, and a later value with the tag is another one's."""
    cache = Cache(MB, 60)

    def ask(number: int, tags: tuple[str, ...] = ("all",)) -> int:
        return cache.get_or_load(f"k{number}", lambda: number, tags=tags)

    for number in range(500):
        ask(number)
    cache.invalidate(tag="all")
    ask(0)
    assert cache.stats()["loads"] == 501
    ask(0)
    assert cache.stats()["hits"] == 1
    for number in range(500):
        ask(number)
    assert (len(cache), cache.stats()["loads"]) == (500, 1_000)
    cache.invalidate(tag="all")
    for number in range(10_000):
        ask(number, ())
    assert cache.size()["size_bytes"] <= MB
    assert cache._entries._tags_bytes == 0


def test_what_a_tag_has_invalidated_makes_room_first() -> None:
    """Also where it was used last; the values that are still good stay, and none is evicted."""
    cache = Cache(200_000, 60)

    def fill(name: str, *tags: str) -> None:
        for number in range(50):
            cache.get_or_load(f"{name} {number}", lambda: b"x" * 1_400, tags=tags)

    fill("item")
    fill("page", "pages", "all pages")
    assert len(cache) == 100
    cache.invalidate(tag="pages")
    fill("new", "pages")
    assert [cache.get(f"item {number}") is None for number in range(50)] == [False] * 50
    assert [cache.get(f"new {number}") is None for number in range(50)] == [False] * 50
    assert cache.stats()["evictions"] == 0
    cache.invalidate(tag="pages")
    for number in range(50):
        assert (cache.get(f"new {number}"), cache.get(f"page {number}")) == (None, None)
    assert cache._entries._invalid == {}  # no tag outlives its entries


def test_a_value_has_the_tags_of_its_last_load(clock: Clock) -> None:
    """Not those of the one that it replaces."""
    cache = Cache(MB, 10, clock=clock)
    cache.get_or_load("k", Loads(), tags=["old"])
    clock.now = 10.0
    cache.get_or_load("k", Loads(), tags=["new"])
    cache.invalidate(tag="old")
    assert cache._entries.find("k") is not None
    cache.invalidate(tag="new")
    assert cache._entries.find("k") is None


def test_who_asks_past_the_time_of_a_stale_value_waits_for_its_load(clock: Clock) -> None:
    """Also the one that began it."""
    cache, load = Cache(MB, 10, stale_s=5, clock=clock), Loads()
    cache.get_or_load("k", load)
    clock.now = 11.0
    load.may_end.clear()

    def twice() -> tuple[str, str]:
        first = cache.get_or_load("k", load)
        clock.now = 16.0
        return first, cache.get_or_load("k", load)

    (job,) = spawn(1, twice)
    wait_until(lambda: cache.stats()["waits"] == 1, "it to wait")
    load.may_end.set()
    assert job.get(timeout=10) == ("load 1", "load 2")


def test_a_load_beside_knows_nothing_of_the_request() -> None:
    """In a worker as well, where a thread is a greenlet and would have a copy of the context."""
    program = """
from greenline.patch import patch_all
patch_all()
import contextvars, time
from greenline.cache import Cache
user = contextvars.ContextVar("user", default="none")
cache = Cache(1 << 20, 0.01, stale_s=60)
user.set("me")
print(cache.get_or_load("k", user.get))
time.sleep(0.02)
print(cache.get_or_load("k", user.get))
while cache.stats()["loads"] < 2: time.sleep(0.001)
print(cache.get_or_load("k", user.get))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("me\nme\nnone\n", "")


@pytest.mark.parametrize("patch", ["", "from greenline.patch import patch_all; patch_all()"])
def test_a_finalizer_may_invalidate(patch: str) -> None:
    """Garbage collection calls it in the middle of any work of the cache."""
    program = f"""
{patch}
import faulthandler, weakref
from greenline.cache import Cache
faulthandler.dump_traceback_later(30, exit=True)
cache = Cache(1 << 20, 60)
class Session:
    def __init__(self, number):
        self.me = self
        weakref.finalize(self, cache.invalidate, f"k{{number}}")
        if number % 9 == 0:
            weakref.finalize(self, cache.clear)
for number in range(10_000):
    Session(number)
    cache.get_or_load(f"k{{number}}", lambda: number, tags=[f"t{{number % 7}}"])
print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_what_is_invalidated_in_the_middle_of_other_work_is_not_returned_after_it() -> None:
    """Neither a value that is kept nor one that is loaded now."""
    cache, load = Cache(MB, 60), Loads(blocks=True)
    cache.get_or_load("kept", lambda: 1, tags=["t"])
    (job,) = spawn(1, lambda: cache.get_or_load("k", load))
    with cache._lock:
        cache.invalidate(tag="t")
        cache.invalidate("k")
    assert cache.get("kept") is None
    load.may_end.set()
    assert job.get(timeout=10) == "load 1"
    assert cache.get("k") is None
    cache.get_or_load("kept", lambda: 1)
    with cache._lock:
        cache.clear()
    assert cache.get_or_load("kept", lambda: 2) == 2
    assert cache.stats()["invalidations"] == 3


def test_what_invalidates_is_not_kept() -> None:
    """Neither a name that no value can have, nor the text of one that some may have, nor tags."""
    cache, small = Cache(MB, 60, shared_loads="test of memory"), Cache(1_000, 60)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(50):
        cache.invalidate(f"{number}{'k' * MB}", tag=f"{number}{'t' * MB}")
    for number in range(900):
        cache.invalidate(f"{number}{'k' * 1_000}")
    for number in range(100):
        tags = [f"{number} {tag} {'t' * 900}" for tag in range(100)]
        small.get_or_load("k", lambda: 1, tags=tags)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert cache._shared is not None
    cache._shared.close()
    assert used < 200_000
    assert cache.stats()["invalidations"] == 950


def test_others_stay_when_one_is_invalidated() -> None:
    """By tag and by key; an unknown name changes nothing."""
    cache = Cache(MB, 60)
    for number in range(3):
        cache.get_or_load(f"k{number}", Loads(), tags=[f"t{number % 2}"])
    cache.invalidate(tag="t0")
    cache.invalidate("unknown", tag="unknown")
    assert [cache._entries.find(f"k{number}") is None for number in range(3)] == [True, False, True]
    cache.get_or_load("k1", lambda: pytest.fail("it was kept"))


def test_what_is_for_one_caller_alone_is_not_shared(clock: Clock) -> None:
    """Each that waits is told so, no failure is counted, and the older value stays or goes."""
    cache = Cache(MB, 10, stale_if_error_s=60, clock=clock)
    for forgets in (False, True):
        cache.get_or_load("k", lambda: "old")
        clock.now += 10.0
        load = Loads(blocks=True)
        load.error = NotShared(forgets)
        jobs = spawn(3, lambda load=load: cache.get_or_load("k", load))
        load.may_end.set()
        gevent.joinall(jobs)
        assert {type(job.exception) for job in jobs} == {NotShared}
        assert (len(cache), load.count) == (0 if forgets else 1, 1)
    assert cache.stats()["failures"] == 0


def test_an_error_has_the_traceback_of_its_caller() -> None:
    """And the load's as its cause: the object is not raised in several greenlets."""
    cache, load = Cache(MB, 60), Loads(blocks=True)
    load.error = StoreDown("gone")
    jobs = spawn(3, lambda: cache.get_or_load("k", load))
    load.may_end.set()
    gevent.joinall(jobs)
    errors = [job.exception for job in jobs]
    assert len({id(error) for error in errors}) == 3
    assert {str(error) for error in errors} == {"gone"}
    assert [error.__cause__ for error in errors].count(load.error) == 2


def test_a_bad_tag_or_time_leaves_nothing_behind() -> None:
    """The next caller loads."""
    cache = Cache(MB, 60)
    for wrong in ({"tags": [["x"]]}, {"ttl_s": 0}, {"ttl_s": "5"}):
        with pytest.raises((TypeError, ValueError)):
            cache.get_or_load("k", lambda: 1, **wrong)
    given = ["a"]
    cache.get_or_load("k", lambda: 1, tags=given)
    given.append("b")
    cache.invalidate(tag="a")
    assert cache.get_or_load("k", lambda: 2, tags=(each for each in ["a"])) == 2
    cache.invalidate(tag="a")
    assert (cache._entries.find("k"), cache._entries._tags) == (None, {})


def test_an_error_that_cannot_be_copied_is_raised_itself() -> None:
    """And one whose constructor changes its text has the same text."""

    class Coded(Exception):
        def __init__(self, code: int) -> None:
            super().__init__(f"bad {code}")

    cache = Cache(MB, 60)
    for error in (Coded(5), Conflict("x")):
        load = Loads(blocks=True)
        load.error = error
        jobs = spawn(2, lambda load=load: cache.get_or_load("k", load))
        load.may_end.set()
        gevent.joinall(jobs)
        for job in jobs:
            assert str(job.exception) == str(error)
            assert job.exception.__cause__ is not job.exception


def test_a_forked_child_waits_for_no_load_of_its_parent() -> None:
    """It loads by itself."""
    program = """
import os, threading, time
from greenline.cache import Cache
cache, begun = Cache(1 << 20, 60), threading.Event()
threading.Thread(
    target=lambda: cache.get_or_load("k", lambda: begun.set() or time.sleep(60)), daemon=True
).start()
begun.wait()
pid = os.fork()
if pid == 0:
    os._exit(cache.get_or_load("k", lambda: 7))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    # From Python 3.12 on each fork of a process with threads warns.
    python = [sys.executable, "-W", "ignore:This process"]
    done = subprocess.run(
        [*python, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_a_forked_child_begins_empty_where_another_thread_changed_the_values() -> None:
    """They may be half of a change."""
    cache = Cache(MB, 60)
    cache.get_or_load("k", lambda: 1, tags=["t"])
    for is_changing, values in ((False, 1), (True, 0)):
        if is_changing:
            cache._lock.acquire()
        pid = os.fork()
        if pid == 0:
            is_right = len(cache) == values and cache.get_or_load("k", lambda: 1) == 1
            os._exit(0 if is_right else 1)
        assert os.waitpid(pid, 0)[1] == 0
    cache._lock.release()


def test_closures_have_keys_of_their_own() -> None:
    """They have one name, and what they have closed over is in no argument."""
    cache = Cache(MB, 60)

    def made(factor: int) -> Callable[[int], int]:
        @cache.cached()
        def times(number: int) -> int:
            return factor * number

        return times

    assert (made(1)(5), made(2)(5)) == (5, 10)


def test_a_closure_is_loaded_by_its_own_worker_alone() -> None:
    """Another worker may have made its closures in another order: they would exchange values."""
    cache = Cache(MB, 60, shared_loads="closures")
    with pytest.raises(TypeError, match="may be another function in another worker"):
        cache.cached()(lambda number: number)
    assert cache._shared is not None
    cache._shared.close()


def test_a_coroutine_function_is_refused_where_it_is_decorated() -> None:
    async def price(book: int) -> int:
        return book

    with pytest.raises(TypeError, match=r"price is a coroutine function"):
        Cache(MB, 60).cached()(price)


def test_with_arguments_that_make_too_long_a_key_a_function_is_called(clock: Clock) -> None:
    """A client may choose them."""
    cache, calls = Cache(MB, 60, clock=clock), []

    @cache.cached()
    def found(text: str) -> int:
        calls.append(text)
        return len(text)

    assert [found("x" * 2_000), found("x" * 2_000), found("x")] == [2_000, 2_000, 1]
    assert (len(calls), len(cache)) == (3, 1)


def test_a_none_that_is_not_kept_leaves_no_older_value(clock: Clock) -> None:
    """It is not there any more."""
    cache = Cache(MB, 10, none_ttl_s=0, stale_s=5, stale_if_error_s=60, clock=clock)
    cache.get_or_load("k", lambda: "old")
    clock.now = 15.0
    assert cache.get_or_load("k", lambda: None) is None
    assert len(cache) == 0


def test_none_has_a_time_of_its_own(clock: Clock) -> None:
    """What is not there is looked for again sooner, or not kept."""
    cache, calls = Cache(MB, 60, none_ttl_s=5, clock=clock), []
    for now in (0, 4.9, 5, 9):
        clock.now = now
        assert cache.get_or_load("k", lambda: calls.append(1)) is None
    assert len(calls) == 2
    assert cache.get_or_load("other", lambda: calls.append(1), ttl_s=60) is None
    clock.now = 14.0
    cache.get_or_load("other", lambda: calls.append(1), ttl_s=60)
    assert len(calls) == 4
    calls.clear()
    cache = Cache(MB, 60, none_ttl_s=0)
    for _ in range(2):
        assert cache.get_or_load("k", lambda: calls.append(1)) is None
    assert (len(calls), len(cache)) == (2, 0)


def test_what_can_change_is_copied() -> None:
    """A caller that changes its list changes no other one's."""
    cache = Cache(MB, 60)
    first = cache.get_or_load("k", lambda: [1])
    first.append(2)
    second = cache.get_or_load("k", lambda: pytest.fail("it was kept"))
    second.append(3)
    assert cache.get_or_load("k", lambda: pytest.fail("it was kept")) == [1]


def test_what_cannot_be_kept_is_an_error_that_names_it() -> None:
    """For all who wait for it as well; nothing is kept."""
    cache = Cache(MB, 60)
    with pytest.raises(NotKept, match="a generator cannot be kept"):
        cache.get_or_load("k", lambda: (each for each in ()))
    with pytest.raises(NotKept, match="cannot be kept"):
        cache.get_or_load("k", threading.Lock)
    with pytest.raises(NotKept, match="a Conflict cannot be kept"):  # it cannot be unpickled
        cache.get_or_load("k", lambda: Conflict("x"))
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("key", "tags", "error"),
    [
        (1, (), "a key is a str, not a int"),
        (("a", 1), (), "a key is a str, not a tuple"),
        ("k" * 1_000_000, (), "has 1000000 characters, not 1024"),
        ("k", "books", "tags is 'books'"),
        ("k", [1], r"tags is \[1\]"),
        ("k", ["t" * 1_025], "the tag 't{40}'... has 1025 characters, not 1024"),
    ],
    ids=["int", "tuple", "megabyte", "tags", "numbers", "long tag"],
)
def test_a_bad_key_is_refused(key: Any, tags: Any, error: str) -> None:
    """The text names what is wrong, in a line of its own length."""
    with pytest.raises((TypeError, ValueError), match=error) as caught:
        Cache(MB, 60).get_or_load(key, lambda: pytest.fail("it was loaded"), tags=tags)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"max_bytes": 0}, "max_bytes is 0"),
        ({"ttl_s": 0}, "ttl_s is 0"),
        ({"ttl_s": float("nan")}, "ttl_s is nan"),
        ({"stale_s": -1}, "stale_s is -1"),
        ({"stale_if_error_s": float("inf")}, "stale_if_error_s is inf"),
        ({"none_ttl_s": -0.1}, "none_ttl_s is -0.1"),
        ({"max_bytes": "64MB"}, "max_bytes is '64MB'; an int is needed, in bytes"),
        ({"max_bytes": 1e6}, "max_bytes is 1000000.0; an int is needed"),
        ({"ttl_s": "5"}, "ttl_s is '5'; a number is needed, in seconds"),
        ({"stale_s": None}, "stale_s is None; a number is needed"),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused(arguments: Any, error: str) -> None:
    """It is named."""
    with pytest.raises((ValueError, TypeError), match=error):
        Cache(**{"max_bytes": MB, "ttl_s": 60} | arguments)


def test_the_least_recently_used_make_room() -> None:
    """The bound holds after each load, and a value beyond it is returned and not kept."""
    cache = Cache(20_000, 60)
    for number in range(100):
        cache.get_or_load(f"k{number}", lambda: b"x" * 1_000, tags=["all", f"t{number}"])
        cache.get_or_load("k0", lambda: b"x" * 1_000)
        assert cache.size()["size_bytes"] <= 20_000
    assert cache.stats()["evictions"] > 80
    before = cache.stats()["hits"]
    cache.get_or_load("k0", lambda: pytest.fail("it was used all the time"))
    assert cache.stats()["hits"] == before + 1
    assert cache.get_or_load("large", lambda: b"x" * 20_000) == b"x" * 20_000
    assert cache.stats()["too_large"] == 1
    cache.clear()
    assert (len(cache), cache.size()["size_bytes"]) == (0, 0)


def test_a_stale_value_is_renewed_by_a_load_that_takes_longer_than_it_is_fresh(
    clock: Clock,
) -> None:
    """The value is old when it comes, and returned as long as another one is loaded."""
    cache, load = Cache(MB, 1, stale_s=60, clock=clock), Loads()
    cache.get_or_load("k", load)
    load.may_end.clear()
    for clock.now in (1.0, 2.1, 3.2):
        assert cache.get_or_load("k", load) == "load 1"
        gevent.sleep(0)
    assert load.count == 2
    load.may_end.set()
    wait_until(lambda: cache.get_or_load("k", load) != "load 1", "the second load")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, r"invalidate\(\) needs a key or a tag"),
        ({"key": ("a", 1)}, "a key is a str, not a tuple"),
        ({"tag": ["a"]}, "a tag is a str, not a list"),
    ],
)
def test_what_can_invalidate_nothing_is_refused(arguments: Any, error: str) -> None:
    """Else its caller would take the values for forgotten."""
    with pytest.raises(TypeError, match=error):
        Cache(MB, 60).invalidate(**arguments)
    with pytest.raises(TypeError, match="tags is 'books'"):
        Cache(MB, 60).cached(tags="books")


def test_a_tag_that_is_given_twice_is_one(clock: Clock) -> None:
    cache = Cache(MB, 60)
    cache.get_or_load("k", lambda: 1, tags=["a", "a"])
    cache.invalidate(tag="a")
    assert cache._entries.find("k") is None
    assert (len(cache), cache.size()["size_bytes"]) == (0, 0)


def test_an_error_of_the_note_is_that_of_the_load() -> None:
    """Those that wait are not left waiting."""
    cache, is_over = Cache(MB, 60), Event()

    def note(where: str) -> None:
        is_over.wait()
        raise LookupError(where)

    first = gevent.spawn(cache.get_or_load, "k", lambda: 1, note=note)
    gevent.sleep(0)
    second = gevent.spawn(cache.get_or_load, "k", lambda: 1)
    gevent.sleep(0)
    is_over.set()
    for each in (first, second):
        with pytest.raises(LookupError, match="miss"):
            each.get(timeout=40)
    assert cache.get_or_load("k", lambda: 1) == 1


def test_none_is_fresh_for_the_time_of_the_call_unless_none_has_its_own(clock: Clock) -> None:
    for own, expected in ((None, [1, 2]), (50.0, [1, 1])):
        cache, calls = Cache(MB, 60, none_ttl_s=own, clock=clock), []
        begun_s = clock.now
        counts = []
        for clock.now in (begun_s, begun_s + 5):
            cache.get_or_load("k", lambda calls=calls: calls.append(1), ttl_s=2)
            counts.append(len(calls))
        assert counts == expected


def test_where_a_value_comes_from_is_noted(clock: Clock) -> None:
    """In the words of RFC 9211, and a value of another time is stale."""
    cache, load = Cache(MB, 10, stale_if_error_s=60, clock=clock), Loads(blocks=True)
    noted: list[list[str]] = [[], [], [], []]

    def ask(number: int) -> str:
        return cache.get_or_load("k", load, note=noted[number].append)

    waiting = [gevent.spawn(ask, 0), gevent.spawn(ask, 1)]
    gevent.sleep(0)
    load.may_end.set()
    gevent.joinall(waiting, timeout=40, raise_error=True)
    ask(2)
    clock.now, load.error = 10.0, StoreDown()
    ask(3)
    assert noted == [["miss"], ["collapsed"], ["hit"], ["miss", "stale"]]


def test_the_fresh_value_of_another_load_in_place_of_an_error_is_a_hit() -> None:
    """Where the load that fails was invalidated, and the next one has ended sooner."""
    cache, old = Cache(MB, 60), Loads(blocks=True)
    old.error = StoreDown()
    noted: list[str] = []
    first, second = (
        spawn(1, lambda: cache.get_or_load("k", old, note=noted.append))[0] for _ in range(2)
    )
    cache.invalidate("k")
    with deadline.limit(0.02):
        assert cache.get_or_load("k", lambda: "new") == "new"
    old.may_end.set()
    assert (first.get(timeout=10), second.get(timeout=10)) == ("new", "new")
    assert noted == ["miss", "collapsed", "hit", "hit"]
    stats = cache.stats()
    assert (stats["hits"], stats["stale"]) == (2, 0)


def test_a_load_that_takes_longer_than_its_value_is_fresh_is_not_waited_for(clock: Clock) -> None:
    """Its value would be older than any that the cache returns."""
    cache, begun = Cache(MB, 10, clock=clock), []
    ends = {1: Event(), 2: Event()}

    def load() -> int:
        number = len(begun) + 1
        begun.append(number)
        ends[number].wait()
        return number

    waiting = []
    for clock.now in (0.0, 9.0, 10.0, 19.0):
        waiting.append(gevent.spawn(cache.get_or_load, "k", load))
        gevent.sleep(0)
    assert begun == [1, 2]
    ends[2].set()
    gevent.sleep(0)
    ends[1].set()
    gevent.joinall(waiting, timeout=40, raise_error=True)
    assert [each.value for each in waiting] == [1, 1, 2, 2]
    assert cache.get_or_load("k", lambda: pytest.fail("the second one is kept")) == 2


def test_a_value_whose_tags_make_it_too_large_is_not_kept() -> None:
    """And makes no room for itself."""
    cache = Cache(10_000, 60)
    cache.get_or_load("k", lambda: b"x")
    tags = [f"{number}{'t' * 1_000}" for number in range(3)]
    cache.get_or_load("large", lambda: b"x" * 7_000, tags=tags)
    assert (len(cache), cache.stats()["too_large"], cache.stats()["evictions"]) == (1, 1, 0)


def test_a_value_that_has_become_too_large_leaves_no_older_one(clock: Clock) -> None:
    """Not even for the case of an error."""
    cache = Cache(10_000, 10, stale_if_error_s=60, clock=clock)
    cache.get_or_load("k", lambda: b"old")
    clock.now = 10.0
    assert len(cache.get_or_load("k", lambda: b"x" * 20_000)) == 20_000
    load = Loads()
    load.error = StoreDown()
    with pytest.raises(StoreDown):
        cache.get_or_load("k", load)


def zone(number: int) -> timezone:
    return timezone(timedelta(minutes=number % 1_000))


@pytest.mark.parametrize(
    "make",
    [
        lambda number: b"%010d" % number,
        lambda number: b"%01000d" % number,
        lambda number: b"%020000d" % number,
        lambda number: uuid4(),
        lambda number: tuple(uuid4() for _ in range(50)),
        lambda number: tuple(datetime(2026, 11, 29, tzinfo=zone(number)) for _ in range(50)),
        lambda number: tuple(time(12, tzinfo=zone(number)) for _ in range(50)),
        lambda number: tuple(datetime(2026, 11, 29, tzinfo=UTC) for _ in range(50)),
        lambda number: tuple(datetime(2026, 11, 29, tzinfo=BERLIN) for _ in range(50)),
        lambda number: f"ж{number}" * 100,
    ],
    ids=[
        "10 bytes", "1,000 bytes", "20,000 bytes", "UUID", "UUIDs", "datetimes", "times", "UTC",
        "ZoneInfo", "text",
    ],
)  # fmt: skip
@pytest.mark.parametrize("alike", [1, 5, 1_000_000], ids=["own tag", "tag of five", "one tag"])
def test_the_memory_is_the_bound(make: Callable[[int], Any], alike: int) -> None:
    """Within 10 %, as Python counts it, with keys and tags."""
    max_bytes = 2 * MB if IS_LONG else MB
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    cache = Cache(max_bytes, 60)
    number = 0
    while not cache.stats()["evictions"]:
        number += 1
        tags = [f"t{number // alike}"]
        key = f"book {number}"
        value = cache.get_or_load(key, lambda number=number: make(number), tags=tags)
        if isinstance(value, str):
            msgspec.json.encode(value)  # CPython keeps its UTF-8 from now on
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.9 * max_bytes < used < 1.1 * max_bytes


def test_a_function_is_kept_by_its_arguments() -> None:
    """However they are passed, and apart where they are equal and not the same."""
    cache, calls = Cache(MB, 60), []

    @cache.cached(tags=["prices"])
    def price(book: int, currency: str = "EUR", *, at: Decimal | None = None) -> str:
        calls.append((book, currency, at))
        return f"{book} {currency}"

    for _ in range(2):
        assert price(1) == price(1, "EUR") == price(book=1, currency="EUR") == "1 EUR"
        assert price(True) == "True EUR"
        assert price(1, at=Decimal(1)) == "1 EUR"
    assert len(calls) == 3
    cache.invalidate(price.key(1))  # type: ignore[attr-defined]
    price(1), price(True)
    assert len(calls) == 4
    cache.invalidate(tag="prices")
    price(1), price(True)
    assert len(calls) == 6
    with pytest.raises(TypeError, match=r"price\(\): no key can be made of a list: \[1\]"):
        price([1])  # type: ignore[arg-type]


def test_keyword_arguments_in_another_order_are_the_same() -> None:
    cache, calls = Cache(MB, 60), []

    @cache.cached()
    def found(**filters: int) -> dict[str, int]:
        calls.append(filters)
        return filters

    assert found(a=1, b=2) == found(b=2, a=1)
    assert len(calls) == 1
    cache.invalidate(found.key(b=2, a=1))  # type: ignore[attr-defined]
    found(a=1, b=2)
    assert len(calls) == 2


def test_it_is_in_the_metrics() -> None:
    """Two of one name are added up; one that is gone has no values, and its counts stay."""
    one, other = Cache(MB, 60, name="books"), Cache(MB, 60, name="books")
    one.get_or_load("k", Loads())
    other.get_or_load("k", Loads())
    assert counters.gauges["cache books"]()["values"] == 2
    assert counters.growths["cache books"]()["loads"] == 2
    assert counters.growths["cache books"]()["loads"] == 0
    assert "loads=1" in repr(one)
    del one, other
    gc.collect()
    assert counters.gauges["cache books"]() == {"values": 0, "size_bytes": 0, "max_bytes": 0}
