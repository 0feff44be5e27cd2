"""greenline.hub.handlers: they are used again, and what goes wrong in them reaches the caller."""

import socket
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from time import monotonic, thread_time
from types import SimpleNamespace
from typing import Any

import gevent
import gevent.event
import pytest

from greenline.hub import sleep
from greenline.hub.handlers import Handlers
from greenline.hub.turns import LONG_S, SMOOTHING
from greenline.offload import threads

REQUEST = SimpleNamespace(method="GET", path="/")


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


def test_the_handler_used_last_is_used_first(handlers: Handlers) -> None:
    """A hundred in turn are one greenlet's work, and its local storage goes on."""
    kept = threading.local()
    counts = []

    def count() -> None:
        kept.count = getattr(kept, "count", 0) + 1
        counts.append(kept.count)

    for _ in range(100):
        handlers.run(count)
    assert counts == list(range(1, 101))
    assert repr(handlers) == "<Handlers size=1 idle=1>"


def test_there_are_as_many_as_work_at_once(handlers: Handlers) -> None:
    """Five at once, twice: five handlers, all idle in the end."""
    for _ in range(2):
        gevent.joinall([gevent.spawn(handlers.run, gevent.sleep, 0.05) for _ in range(5)])
    assert handlers.stats() == {"size": 5, "idle": 5}


def test_an_error_is_raised_in_the_caller_and_the_handler_goes_on(handlers: Handlers) -> None:
    """Also one that is no Exception."""
    for error in (ValueError, SystemExit, gevent.GreenletExit):
        with pytest.raises(error):
            handlers.run(raising, error)
    assert handlers.stats() == {"size": 1, "idle": 1}


def raising(error: type[BaseException]) -> None:
    raise error


def test_a_kill_of_the_caller_interrupts_the_work_and_waits_for_its_end(handlers: Handlers) -> None:
    """The work cleans up, which takes its time, before the caller goes on."""
    ended = []

    def work() -> None:
        try:
            gevent.sleep(60)
        finally:
            gevent.sleep(0.05)
            ended.append("work")

    def call() -> None:
        try:
            handlers.run(work)
        finally:
            ended.append("caller")

    caller = gevent.spawn(call)
    gevent.sleep(0.01)
    caller.kill(timeout=40)
    assert ended == ["work", "caller"]
    assert handlers.stats() == {"size": 1, "idle": 1}


def test_work_started_in_the_hub_runs_at_once_until_it_waits(handlers: Handlers) -> None:
    """And goes on when what it waits for is there."""
    steps: list[str] = []
    done = gevent.event.Event()

    def work(_: object) -> None:
        steps.append("begun")
        gevent.sleep(0.01)
        steps.append("ended")
        done.set()

    def start() -> None:
        handlers.start(work, None)
        steps.append("returned")

    gevent.get_hub().loop.run_callback(start)
    assert done.wait(10)
    gevent.sleep(0)
    assert steps == ["begun", "returned", "ended"]
    assert handlers.stats() == {"size": 1, "idle": 1}


def test_one_that_was_ended_while_it_was_idle_is_not_used_again(handlers: Handlers) -> None:
    """A timeout that a request left behind, or a stray switch: the next request is served."""
    done = []
    handlers.run(lambda: gevent.Timeout(0.01).start())
    gevent.sleep(0.05)
    handlers.run(done.append, 1)
    assert handlers.stats() == {"size": 1, "idle": 1}
    left: list[gevent.Greenlet] = []
    handlers.run(lambda: left.append(gevent.getcurrent()))
    gevent.get_hub().loop.run_callback(left[0].switch)
    gevent.sleep(0.01)
    handlers.run(done.append, 2)
    assert done == [1, 2]
    assert handlers.stats() == {"size": 1, "idle": 1}


def test_those_of_a_burst_end_when_it_is_over(handlers: Handlers) -> None:
    """Thirty at once, then two at once for a while: those not needed end, but for ten."""
    gevent.joinall([gevent.spawn(handlers.run, gevent.sleep, 0.05) for _ in range(30)])
    handlers.retire_unused(10)
    for _ in range(3):
        gevent.joinall([gevent.spawn(handlers.run, gevent.sleep, 0.01) for _ in range(2)])
        handlers.note_idle()
    assert handlers.retire_unused(10) == 20
    gevent.sleep(0.01)
    assert handlers.stats() == {"size": 10, "idle": 10}
    assert handlers.retire_unused(10) == 0


def test_what_a_retired_handler_kept_is_dropped(handlers: Handlers) -> None:
    """As what a thread keeps is when it ends; one that works is left alone."""

    class Kept:
        def __del__(self) -> None:
            dropped.append(1)

    kept, dropped = threading.local(), []

    def keep(wait: Callable[[float], object]) -> None:
        kept.value = Kept()
        wait(10.0)

    is_over = gevent.event.Event()
    working = gevent.spawn(handlers.run, keep, is_over.wait)
    gevent.joinall(
        [gevent.spawn(handlers.run, keep, lambda _: gevent.sleep(0.01)) for _ in range(3)]
    )
    assert handlers.retire_idle(1) == 1
    gevent.sleep(0.01)
    assert len(dropped) == 1
    assert handlers.retire_idle(9) == 2
    gevent.sleep(0.01)
    assert len(dropped) == 3
    is_over.set()
    working.join(10)
    assert working.successful()
    assert handlers.stats() == {"size": 1, "idle": 1}


def compute(seconds: float = 2 * LONG_S) -> None:
    until_s = thread_time() + seconds
    while thread_time() < until_s:
        pass


def wait_for_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    gevent.spawn_later(0.001, lock.release)
    lock.acquire()


def wait_for_queue() -> None:
    queue: SimpleQueue[None] = SimpleQueue()
    gevent.spawn_later(0.001, queue.put, None)
    queue.get()


def wait_for_event() -> None:
    event = threading.Event()
    gevent.spawn_later(0.001, event.set)
    event.wait(timeout=10.0)


def wait_for_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        gevent.spawn_later(0.001, theirs.send, b"x")
        ours.recv(1)


WAITS = [
    pytest.param(lambda: None, id="none"),
    pytest.param(wait_for_socket, id="socket"),
    pytest.param(wait_for_lock, id="lock"),
    pytest.param(wait_for_queue, id="queue"),
    pytest.param(wait_for_event, id="event"),
    pytest.param(partial(sleep.sleep, 0.001), id="sleep"),
    pytest.param(partial(threads.run, bool), id="offloaded call"),
]


@pytest.mark.usefixtures("noted_waits")
@pytest.mark.parametrize("wait", WAITS)
def test_what_a_request_computes_is_noted(handlers: Handlers, wait: Callable[[], object]) -> None:
    """Before a wait as well as after it."""
    for work in ((wait, compute), (compute, wait)):
        for _ in range(2):
            handlers.run(lambda work=work: [each() for each in work], request=REQUEST)
        (seconds,) = handlers.turns.pages.values()
        assert seconds >= 2 * LONG_S
        handlers.turns.forget_unused()
        handlers.turns.forget_unused()


@pytest.mark.usefixtures("noted_waits")
@pytest.mark.parametrize("wait", [*WAITS, pytest.param(gevent.event.Event().wait, id="event")])
def test_a_wait_is_no_computing(handlers: Handlers, wait: Callable[[], object]) -> None:
    """Whatever it is for, and however long."""

    def work() -> None:
        with gevent.Timeout(5 * LONG_S, False):  # type: ignore[arg-type]
            wait()
        gevent.sleep(5 * LONG_S)

    for _ in range(2):
        handlers.run(work, request=REQUEST)
    assert not any(handlers.turns.pages.values())


def test_a_pause_is_no_end_of_computing(handlers: Handlers) -> None:
    """The page is as long as all that it computes until it waits."""

    def work() -> None:
        me: Any = gevent.getcurrent()
        compute()
        computed_s = me.pause()
        gevent.sleep(0.01)
        me.go_on(computed_s)
        compute()

    page = SimpleNamespace(method="GET", path="/page")
    for clock in (monotonic, thread_time):  # the next request is measured exactly
        handlers.turns.note(page, LONG_S, clock)
    for _ in range(SMOOTHING):
        handlers.run(work, request=page)
    assert handlers.turns.known_s(page) >= LONG_S + (4 * LONG_S - LONG_S) / SMOOTHING
