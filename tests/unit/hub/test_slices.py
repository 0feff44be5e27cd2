"""greenline.hub.slices: what computes is interrupted, where a thread may be."""

import ctypes
import gc
import hashlib
import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import weakref
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import RLock, Thread
from time import monotonic, process_time, sleep, thread_time
from types import FunctionType, SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original
from greenlet import getcurrent, greenlet

from greenline.hub import slices as module
from greenline.hub.handlers import Handlers
from greenline.hub.slices import FIRST, Slices, interrupted
from greenline.hub.turns import Turns
from greenline.offload.imports import after_import
from tests.helpers.slices import interrupted_after

INTERVAL_S = 0.002
LONG_S = 0.1  # of processor time, which many intervals are
MANY = 5  # rounds of others
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
    with interrupted_after(INTERVAL_S) as made:
        yield made


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
    assert not interrupted


def test_what_computes_for_less_than_some_intervals_is_not_interrupted() -> None:
    """Several together may compute for longer."""
    interval_s = 0.3
    with interrupted_after(interval_s) as handlers:
        for _ in range(25):
            assert run(handlers, in_application(partial(compute, interval_s / 5))) < MANY
            gevent.sleep(0.001)  # another round of the loop


def test_a_signal_in_the_handler_is_ignored(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of the handler would be interrupted by the next one."""
    find, depths, depth = Slices._find, set[int](), 0

    def noted(*args: Any) -> Any:
        nonlocal depth
        depth += 1
        depths.add(depth)
        interrupt_main(module.SIGNAL)
        getcurrent()  # after a call the interpreter looks for signals
        depth -= 1
        return find(*args)

    monkeypatch.setattr(Slices, "_find", noted)
    assert run(handlers, in_application()) > MANY
    assert depths == {1}


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


@pytest.mark.parametrize("name", ["gevent.pool", "greenline.postgres.pool", "logging"])
def test_what_expects_to_run_until_it_waits_does(handlers: Handlers, name: str) -> None:
    """Nor is what it calls interrupted: it holds a lock, or is between two of its steps."""
    assert run(handlers, in_application(of_module(name, compute))) < MANY
    assert run(handlers, in_application(partial(of_module(name, call), compute))) < MANY


def test_the_worker_itself_is_not_interrupted(handlers: Handlers) -> None:
    assert run(handlers, of_module("greenline.worker.worker", compute)) < MANY


@pytest.mark.parametrize(
    "name", ["concurrent.futures.thread", "importlib._bootstrap", "queue", "threading"]
)
def test_what_may_hold_a_lock_that_the_hub_needs_is_not_interrupted(
    handlers: Handlers, name: str
) -> None:
    """What it calls is: the function of a thread, for instance."""
    assert run(handlers, in_application(of_module(name, compute))) < MANY
    assert run(handlers, in_application(partial(of_module(name, call), compute))) > MANY


@pytest.mark.parametrize(
    ("name", "version", "is_interrupted"),
    [
        ("torch", "2.9.0", False),
        ("numpy", "1.26.4", False),
        ("numpy", "2.0.0", True),
    ],
)
def test_a_library_that_knows_native_threads_alone_keeps_the_worker(
    handlers: Handlers,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: str,
    is_interrupted: bool,
) -> None:
    """What one request sets for a block would be set for another one."""
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(__version__=version))
    assert (run(handlers, in_application()) > MANY) is is_interrupted


def test_what_waits_for_the_disk_is_interrupted_between_two_calls(handlers: Handlers) -> None:
    """It uses no processor, and the timer of that does not run."""
    sleep = get_original("time", "sleep")  # as a read of a slow disk

    def work() -> None:
        until_s = monotonic() + 20 * LONG_S
        while monotonic() < until_s:
            sleep(LONG_S / 20)

    assert run(handlers, in_application(work)) > MANY


@pytest.mark.parametrize(
    ("call_c", "computes"),
    [
        pytest.param(partial(get_original("time", "sleep"), LONG_S), False, id="waits"),
        pytest.param(partial(hashlib.sha256, bytes(50_000_000)), True, id="computes"),
    ],
)
def test_a_call_into_c_that_lets_other_threads_run_is_noted(call_c: Work, computes: bool) -> None:
    """With its time, and how much of that it used the processor."""
    noted: list[tuple[Any, ...]] = []
    before_s = monotonic()
    with interrupted_after(INTERVAL_S, lambda *each: noted.append(each)) as handlers:
        run(handlers, in_application(call_c))
    took_s = monotonic() - before_s
    assert noted
    assert all(request is REQUEST for request, *_ in noted)
    blocked_s, computed_s = (sum(each[number] for each in noted) for number in (1, 2))
    # A short call at its end is taken for several.
    assert 0 < blocked_s <= took_s + module.LOOK_S
    assert (computed_s > blocked_s / 4) is computes


def test_short_calls_one_after_the_other_are_noted() -> None:
    """Of each a look sees the end alone, or nothing."""
    noted: list[float] = []
    part = bytes(400_000)

    def work() -> None:
        until_s = monotonic() + LONG_S
        while monotonic() < until_s:
            hashlib.sha256(part)

    with interrupted_after(INTERVAL_S, lambda *each: noted.append(each[1])) as handlers:
        with gevent.Timeout(30):
            while sum(noted) < LONG_S / 10:
                run(handlers, in_application(work))


@pytest.mark.parametrize("waits", [False, True])
def test_nothing_else_is_noted(waits: bool) -> None:
    """Neither Python nor C that keeps the interpreter's lock, nor what begins in an idle hub."""
    noted: list[object] = []
    usleep = ctypes.PyDLL(None).usleep

    def work() -> None:
        if waits:
            gevent.sleep(LONG_S)
        usleep(int(1e6 * LONG_S))
        compute()

    with interrupted_after(INTERVAL_S, lambda *each: noted.append(each)) as handlers:
        run(handlers, in_application(work))
        gevent.sleep(LONG_S)
        run(handlers, in_application(int))
    assert noted == []


@pytest.mark.parametrize("is_of_the_handler", [True, False])
def test_what_began_after_an_interruption_was_asked_for_has_not_kept_the_thread(
    is_of_the_handler: bool,
) -> None:
    """The hub was idle then, and no greenlet could answer."""
    noted: list[object] = []
    with interrupted_after(60.0, lambda *each: noted.append(each)) as handlers:
        slices = signal.getsignal(module.SIGNAL).__self__  # type: ignore[union-attr]

        def ask() -> None:
            slices._asked_queued_s = slices._queued.seconds()
            slices._asked_s, slices._asked_computed_s = monotonic(), thread_time()
            compute(0.002)

        def work() -> None:
            if is_of_the_handler:
                ask()
            interrupt_main(module.SIGNAL)

        if not is_of_the_handler:
            ask()
        run(handlers, in_application(work))
    assert bool(noted) is is_of_the_handler


def test_a_wait_for_a_processor_before_a_call_is_none_of_the_call() -> None:
    """A call of a millisecond, on a machine that is busy, would not be noted."""
    noted: list[object] = []
    with interrupted_after(60.0, lambda *each: noted.append(each)) as handlers:
        slices: Any = signal.getsignal(module.SIGNAL).__self__  # type: ignore[union-attr]
        queued_s = slices._queued.seconds()
        slices._queued = SimpleNamespace(seconds=lambda: queued_s, close=slices._queued.close)

        def work() -> None:
            nonlocal queued_s
            queued_s += 1.0
            get_original("_thread", "start_new_thread")(slices.interrupt, (True,))
            get_original("time", "sleep")(0.02)

        with gevent.Timeout(30):
            while not noted:  # a thread may have asked before the call had begun, or after it
                run(handlers, in_application(work))


def test_an_interruption_within_the_answer_to_another_is_answered() -> None:
    with interrupted_after(60.0):
        slices: Any = signal.getsignal(module.SIGNAL).__self__  # type: ignore[union-attr]
        slices._is_ticking, slices._asked_s = True, 0.0
        assert slices._tick(0, None) is None
        assert slices._asked_s == math.inf


def test_a_stopped_timer_ends_that_as_well(handlers: Handlers) -> None:
    ticks: list[int] = []
    slices = Slices(handlers.turns, INTERVAL_S)
    slices.start(lambda *_: None)  # the fixture's handler is set
    signal.signal(module.SIGNAL, lambda *_: ticks.append(1))
    slices.interrupt()
    assert not ticks


@pytest.mark.parametrize("has_action", [False, True])
def test_a_module_that_computes_is_interrupted(
    handlers: Handlers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_action: bool
) -> None:
    """Another import of it waits for its end."""
    name = f"computing_{has_action}"
    (tmp_path / f"{name}.py").write_text(f"from {__name__} import compute\ncompute()\nfound = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if has_action:
        after_import(name, lambda each: setattr(each, "found", each.found + 1))
    found: list[int] = []

    def work() -> None:
        found.append(importlib.import_module(name).found)

    both = [start(handlers, in_application(work)) for _ in range(2)]
    assert sum(map(rounds_until, both)) > MANY
    assert handlers.stats()["size"] == 2
    assert found == [1 + has_action] * 2


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
    (handler,) = interrupted
    gevent.kill(handler)
    rounds_until(ended)
    assert caught
    assert not interrupted


def test_the_time_without_a_wait_goes_on_across_interruptions(handlers: Handlers) -> None:
    """So the page is known to compute for long, and its requests take turns."""
    for _ in range(8):  # one in four is measured exactly
        run(handlers, in_application())
    (found_s,) = handlers.turns.pages.values()
    assert found_s > 2 * FIRST * INTERVAL_S


def test_a_page_is_known_once_it_was_interrupted() -> None:
    """Its next requests are interrupted sooner."""
    interval_s = 0.008
    with interrupted_after(interval_s) as handlers:
        computed_s = []
        for _ in range(6):
            before_s = process_time()
            ended = start(handlers, in_application())
            while not (interrupted or ended):
                gevent.sleep(0)
            computed_s.append(process_time() - before_s)
            rounds_until(ended)
    assert computed_s[0] > (FIRST - 1) * interval_s > min(computed_s[1:])


def test_a_file_that_several_print_to_is_not_interrupted(
    handlers: Handlers, tmp_path: Path
) -> None:
    """It looks for signals while it holds its native lock, which knows no greenlets."""
    failed: list[RuntimeError] = []
    with (tmp_path / "printed").open("w") as file:

        def work() -> None:
            until_s = process_time() + LONG_S
            while process_time() < until_s and not failed:
                try:
                    print("x" * 2000, file=file, flush=True)
                except RuntimeError as error:
                    failed.append(error)

        both = [start(handlers, in_application(work)) for _ in range(2)]
        for ended in both:
            rounds_until(ended)
    assert not failed


@pytest.mark.parametrize(
    "step",
    [
        lambda: [json.dumps(number) for number in range(100)],
        lambda: sorted(range(100), key=lambda number: -number),
        lambda: re.sub("x", lambda _: "y", "x" * 100),
        lambda: str(dict.fromkeys(range(1000))),
    ],
    ids=["functions of C", "a key", "a replacement", "one call"],
)
def test_what_calls_functions_of_c_is_interrupted(handlers: Handlers, step: Work) -> None:
    def work() -> None:
        until_s = process_time() + LONG_S
        while process_time() < until_s:
            step()

    assert run(handlers, in_application(work)) > MANY


def test_what_native_code_calls_is_not_interrupted(handlers: Handlers) -> None:
    """It may hold a native lock, as lxml does for each parser."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def compare(*_: object) -> int:
        compute()
        return 0

    sort = partial(ctypes.CDLL(None).qsort, (ctypes.c_int * 2)(1, 2), 2, 4, kind(compare))
    assert run(handlers, in_application(sort)) < MANY
    assert run(handlers, in_application()) > MANY


def test_a_function_in_c_that_looks_for_signals_is_not_interrupted(handlers: Handlers) -> None:
    def search() -> None:
        re.match("(a+)+$", "a" * 21 + "b")

    assert run(handlers, in_application(search)) < MANY


def test_the_error_number_of_a_call_in_c_is_kept(handlers: Handlers) -> None:
    found: list[int] = []

    def work(number: int) -> None:
        ctypes.set_errno(number)
        compute()
        found.append(ctypes.get_errno())

    both = [start(handlers, in_application(partial(work, number))) for number in (1, 2)]
    for ended in both:
        rounds_until(ended)
    assert handlers.stats()["size"] == 2
    assert sorted(found) == [1, 2]


@pytest.mark.parametrize("name", ["setprofile", "settrace"])
def test_what_is_profiled_is_not_interrupted(handlers: Handlers, name: str) -> None:
    """The function would be called for other requests as well."""
    set_function: Callable[[object], None] = getattr(sys, name)

    def work() -> None:
        set_function(lambda *_: None)
        try:
            compute()
        finally:
            set_function(None)

    assert run(handlers, in_application(work)) < MANY


def test_a_list_has_its_repr_in_several(handlers: Handlers) -> None:
    """The interpreter notes per native thread of which lists a repr() is in progress."""

    class Item:
        def __repr__(self) -> str:
            compute(FIRST * INTERVAL_S)
            return "item"

    items, found = [Item() for _ in range(10)], list[str]()
    work = in_application(lambda: found.append(repr(items)))
    for ended in [start(handlers, work) for _ in range(2)]:
        rounds_until(ended)
    assert handlers.stats()["size"] == 2
    assert found == ["[" + ", ".join(["item"] * 10) + "]"] * 2


def test_no_destructor_runs_in_the_hub_while_one_that_may_hold_its_lock_waits(
    handlers: Handlers,
) -> None:
    lock, destroyed = RLock(), list[object]()

    class InCycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            with lock:
                destroyed.append(self)

    def work() -> None:
        with lock:
            compute()

    def litter() -> None:
        for _ in range(100):
            InCycle()

    ended = start(handlers, in_application(work))
    while not ended:
        gevent.get_hub().loop.run_callback(litter)
        gevent.sleep(0)
    assert gc.isenabled()
    gc.collect()
    assert destroyed
    assert len(destroyed) % 100 == 0


def test_garbage_is_collected_beside_one_that_was_interrupted(handlers: Handlers) -> None:
    """But not in the hub. MoinMoin's database stayed locked by a failed request's connection."""
    seen: list[bool] = []

    def work() -> None:
        for _ in range(5):
            compute(LONG_S / 5)
            seen.append(gc.isenabled())
            sleep(0.0001)
            seen.append(gc.isenabled())

    all_ended = [start(handlers, in_application(work)) for _ in range(4)]
    in_hub: list[bool] = []
    while not all(all_ended):
        gevent.get_hub().loop.run_callback(lambda: in_hub.append(gc.isenabled()))
        gevent.sleep(0)
    assert False not in seen
    assert False in in_hub
    gevent.sleep(0)
    assert gc.isenabled()


@pytest.mark.usefixtures("handlers")
def test_a_thread_that_was_interrupted_collects_garbage_too() -> None:
    in_threads, in_hub, ended = list[bool](), list[bool](), list[bool]()

    def work() -> None:
        for _ in range(20):
            compute(FIRST * INTERVAL_S)
            in_threads.append(gc.isenabled())
        ended.append(True)

    for _ in range(2):
        Thread(target=work).start()
    while len(ended) < 2:
        gevent.get_hub().loop.run_callback(lambda: in_hub.append(gc.isenabled()))
        gevent.sleep(0)
    assert in_threads[-1]
    assert in_threads.count(True) > len(in_threads) / 2
    assert False in in_hub
    assert gc.isenabled()


def test_a_child_collects_garbage(handlers: Handlers) -> None:
    """It has none of those that were interrupted."""
    ended = start(handlers, in_application(partial(compute, 5 * LONG_S)))
    while not interrupted:
        assert not ended
        gevent.sleep(0)
    if (pid := os.fork()) == 0:
        os._exit(not gc.isenabled() or bool(interrupted))
    assert os.waitpid(pid, 0)[1] == 0
    rounds_until(ended)


@pytest.mark.usefixtures("handlers")
def test_a_thread_that_has_ended_is_dropped() -> None:
    """What it kept is destroyed with it, such as a connection."""
    greenlets: list[weakref.ref[greenlet]] = []

    def work() -> None:
        greenlets.append(weakref.ref(getcurrent()))
        compute()

    thread = Thread(target=work)
    thread.start()
    thread.join()
    del thread
    gevent.sleep(0)
    gevent.sleep(0)
    assert greenlets[0]() is None


def test_a_program_is_not_ended_by_the_signal() -> None:
    """A process keeps its timer where it executes another program in its place."""
    source = (
        "import gevent.monkey; gevent.monkey.patch_all()\n"
        "import os, signal, sys\n"
        "from greenline.hub.slices import Slices\n"
        "from greenline.hub.turns import Turns\n"
        "Slices(Turns(), 0.002).start()\n"
        "try:\n"
        "    os.execv('/nowhere', ['nowhere'])\n"
        "except OSError:\n"
        "    assert signal.getitimer(signal.ITIMER_VIRTUAL)[1]\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'sum(range(5_000_000)); print(1)'])\n"
    )
    assert subprocess.check_output([sys.executable, "-c", source], timeout=30) == b"1\n"


def test_a_handler_of_the_application_stays() -> None:
    def handler(*_: object) -> None: ...

    before = signal.signal(module.SIGNAL, handler)
    try:
        Slices(Turns(), INTERVAL_S).start()
        assert signal.getsignal(module.SIGNAL) is handler
        assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    finally:
        signal.signal(module.SIGNAL, before)


def test_signals_come_only_while_something_computes() -> None:
    ticks: list[int] = []
    slices = Slices(Turns(), INTERVAL_S)
    slices.start()
    signal.signal(module.SIGNAL, lambda *_: ticks.append(1))
    until_s, before_s = monotonic() + 50 * INTERVAL_S, process_time()
    while monotonic() < until_s:
        gevent.sleep(10 * INTERVAL_S)
    assert len(ticks) <= (process_time() - before_s) / INTERVAL_S + 1
    slices.stop()
    signal.signal(module.SIGNAL, signal.SIG_DFL)


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
