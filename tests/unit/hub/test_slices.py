"""greenline.hub.slices: what computes is interrupted, where a thread may be."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread
from time import monotonic, process_time
from types import FunctionType, SimpleNamespace

import gevent
import pytest
from gevent.monkey import get_original

from greenline.hub import slices as module
from greenline.hub.handlers import Handlers
from greenline.hub.slices import Slices, computing

INTERVAL_S = 0.002
LONG_S = 0.1  # of processor time, which many intervals are
MANY = 5  # of these
REQUEST = SimpleNamespace(method="GET", path="/long")

Work = Callable[[], object]


def compute(seconds: float = LONG_S) -> None:
    until_s = process_time() + seconds
    while process_time() < until_s:
        pass


def call(work: Work) -> None:
    work()


def of_module(name: str, function: Callable[..., None]) -> Callable[..., None]:
    """Return *function* as one of the module *name*."""
    return FunctionType(
        function.__code__, {**globals(), "__name__": name}, None, function.__defaults__
    )


def in_application(work: Work = compute) -> Work:
    """Return what calls *work* as the worker calls an application."""
    return partial(of_module("greenline.worker.worker", call), work)


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    """Handlers that are interrupted."""
    made = Handlers()
    slices = Slices(made.turns, INTERVAL_S)
    before = signal.getsignal(module.SIGNAL)
    slices.start()
    yield made
    slices.stop()
    signal.signal(module.SIGNAL, before)
    made.retire_idle(made.idle())
    gevent.sleep(0)


def rounds_until(ended: list[bool]) -> int:
    """Return how often others run until something has *ended*."""
    rounds = 0
    while not ended:
        gevent.sleep(0)
        rounds += 1
    return rounds


def start(handlers: Handlers, work: Work) -> list[bool]:
    """Have a handler call *work*; return what is not empty when it has ended."""
    ended: list[bool] = []

    def both() -> None:
        work()
        ended.append(True)

    gevent.spawn(partial(handlers.run, both, request=REQUEST))
    return ended


def run(handlers: Handlers, work: Work) -> int:
    """Have a handler call *work*; return how often others ran meanwhile."""
    return rounds_until(start(handlers, work))


def test_others_run_while_one_computes(handlers: Handlers) -> None:
    assert run(handlers, in_application()) > MANY
    assert not computing


def test_what_computes_for_less_than_an_interval_is_not_interrupted(handlers: Handlers) -> None:
    for _ in range(20):
        assert run(handlers, in_application(partial(compute, INTERVAL_S / 10))) < MANY
        gevent.sleep(0.001)  # another round of the loop


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("make", "is_interrupted"),
    [
        (lambda work: Thread(target=work).start(), True),
        # The application expects it to run until it waits.
        (gevent.spawn, False),
    ],
    ids=["thread", "greenlet"],
)
def test_a_thread_is_interrupted(make: Callable[[Work], object], is_interrupted: bool) -> None:
    ended: list[bool] = []

    def work() -> None:
        compute()
        ended.append(True)

    make(work)
    assert (rounds_until(ended) > MANY) is is_interrupted


@pytest.mark.parametrize(
    "name", ["gevent.pool", "greenline.postgres.pool", "importlib._bootstrap", "logging"]
)
def test_what_expects_to_run_until_it_waits_does(handlers: Handlers, name: str) -> None:
    """Nor is what it calls interrupted: it holds a lock, or is between two of its steps."""
    assert run(handlers, in_application(of_module(name, compute))) < MANY
    assert run(handlers, in_application(partial(of_module(name, call), compute))) < MANY


def test_the_worker_itself_is_not_interrupted(handlers: Handlers) -> None:
    assert run(handlers, of_module("greenline.worker.worker", compute)) < MANY


@pytest.mark.parametrize("name", ["concurrent.futures.thread", "queue", "threading"])
def test_what_may_hold_a_lock_that_the_hub_needs_is_not_interrupted(
    handlers: Handlers, name: str
) -> None:
    """What it calls is: the function of a thread, for instance."""
    assert run(handlers, in_application(of_module(name, compute))) < MANY
    assert run(handlers, in_application(partial(of_module(name, call), compute))) > MANY


@pytest.mark.parametrize(
    ("name", "version", "is_interrupted"),
    [("torch", "2.9.0", False), ("numpy", "1.26.4", False), ("numpy", "2.0.0", True)],
)
def test_a_library_with_state_per_native_thread_keeps_the_worker(
    handlers: Handlers,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: str,
    is_interrupted: bool,
) -> None:
    """What one request sets for a block would be set for another one."""
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(__version__=version))
    assert (run(handlers, in_application()) > MANY) is is_interrupted


def test_two_that_compute_share_the_processor(handlers: Handlers) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        compute()
        assert begun == [0, 1]

    both = [start(handlers, in_application(partial(work, number))) for number in range(2)]
    for ended in both:
        rounds_until(ended)
    assert handlers.stats()["size"] == 2


def test_one_that_was_interrupted_can_be_ended(handlers: Handlers) -> None:
    caught: list[bool] = []

    def work() -> None:
        try:
            compute(60)
        except gevent.GreenletExit:
            caught.append(True)

    ended = start(handlers, in_application(work))
    gevent.sleep(0)
    (handler,) = computing
    gevent.kill(handler)
    rounds_until(ended)
    assert caught
    assert not computing


def test_the_time_without_a_wait_goes_on_across_interruptions(handlers: Handlers) -> None:
    """So the page is known to compute for long, and its requests take turns."""
    for _ in range(2):
        run(handlers, in_application())
    (found_s,) = handlers.turns.pages.values()
    assert found_s > LONG_S / 2


@pytest.mark.usefixtures("handlers")
def test_signals_come_only_while_something_computes() -> None:
    ticks: list[int] = []
    signal.signal(module.SIGNAL, lambda *_: ticks.append(1))
    until_s = monotonic() + 50 * INTERVAL_S
    while monotonic() < until_s:
        gevent.sleep(10 * INTERVAL_S)
    assert len(ticks) <= MANY


@pytest.mark.usefixtures("handlers")
def test_a_call_into_c_that_waits_is_not_interrupted() -> None:
    """A library may take EINTR for a failure. Threads of others may block all signals."""
    ours, theirs = os.pipe()

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {module.SIGNAL})
        compute()
        os.write(theirs, b"x")

    get_original("_thread", "start_new_thread")(work, ())
    assert ctypes.CDLL(None).read(ours, ctypes.create_string_buffer(1), 1) == 1
    os.close(ours)
    os.close(theirs)


def test_the_timer_ends_with_the_process() -> None:
    """Before Python restores what the signal does by default: it ends the process."""
    code = (
        "import atexit, signal\n"
        "from greenline.hub.slices import Slices\n"
        "from greenline.hub.turns import Turns\n"
        "atexit.register(lambda: print(signal.getitimer(signal.ITIMER_VIRTUAL)))\n"
        "Slices(Turns(), 0.005).start()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout == "(0.0, 0.0)\n", ended.stderr
