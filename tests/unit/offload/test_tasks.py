"""What threads of the application do runs in native threads, once it has blocked in C code."""

import asyncio
import logging
import re
import signal
import sys
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial, wraps
from math import inf
from multiprocessing.pool import ThreadPool
from queue import SimpleQueue
from threading import Event
from time import monotonic, thread_time
from types import ModuleType
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original

from greenline.hub.handlers import Handlers, end_wait
from greenline.hub.slices import SIGNAL
from greenline.offload import tasks
from greenline.offload.pages import BLOCKED_S, MIN_BLOCKED, OF_ONE_THREAD, Pages, Task
from greenline.offload.threads import is_offloaded
from greenline.offload.threads import run as run_in_thread
from tests.helpers.slices import interrupted_after

LONG_S = 0.1
native_ident = get_original("_thread", "get_ident")
local = threading.local()


def sort(*_: object) -> bool:
    return is_offloaded()


class Sorting(threading.Thread):
    was_offloaded = False

    def run(self) -> None:
        self.was_offloaded = sort()


@pytest.fixture(autouse=True)
def known(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> Pages:
    """What the worker notes in."""
    monkeypatch.setattr(tasks, "pages", pages)
    return pages


def block(known: Pages, func: Any) -> None:
    """Note that *func* has blocked, as often as is needed."""
    for _ in range(MIN_BLOCKED):
        known.note(Task(func), LONG_S, LONG_S)


def of_target(func: Callable[[], object]) -> bool:
    found: list[bool] = []

    def target() -> None:
        found.append(is_offloaded())

    target.__qualname__ = func.__qualname__
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    return found[0]


def timed(func: Callable[..., bool]) -> bool:
    found: list[bool] = []
    timer = threading.Timer(0.0, lambda: None)
    timer.function = wraps(func)(lambda: found.append(func()))
    timer.start()
    timer.join()
    return found[0]


def submitted(executor: Callable[..., Executor], func: Callable[..., bool]) -> bool:
    with executor(1) as each:
        return each.submit(func).result()


def mapped(func: Callable[..., bool]) -> bool:
    with ThreadPool(1) as pool:
        return all(pool.map(func, range(3)))


def applied(func: Callable[..., bool]) -> bool:
    with ThreadPool(1) as pool:
        return pool.apply(func)


def by_asyncio(func: Callable[..., bool]) -> bool:
    return asyncio.run(asyncio.to_thread(func))


@pytest.mark.parametrize(
    "run",
    [of_target, timed, partial(submitted, ThreadPoolExecutor), mapped, applied, by_asyncio],
    ids=["thread", "timer", "executor", "map", "apply", "asyncio"],
)
def test_what_has_blocked_runs_in_a_native_thread(known: Pages, run: Any) -> None:
    assert not run(sort)
    block(known, sort)
    assert run(sort)
    block(known, partial(sort, 1))  # it is the same function
    assert run(sort)


def test_a_class_of_threads_is_known_by_its_own_method(known: Pages) -> None:
    block(known, Sorting.run)
    thread = Sorting()
    thread.start()
    thread.join()
    assert thread.was_offloaded


def test_a_thread_is_what_it_was(known: Pages) -> None:
    """It has its ident and thread-locals, and an error of it is its own."""
    block(known, sort)
    found: list[Any] = []

    def work() -> None:
        found.append((sort(), threading.get_ident(), threading.current_thread()))
        local.value = 1
        raise ValueError

    work.__qualname__ = sort.__qualname__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda args: found.append(args.exc_type))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [(True, thread.ident, thread), ValueError]
    assert not hasattr(local, "value")
    assert "run" not in vars(thread)


def test_a_run_that_a_library_has_set_is_called_and_stays() -> None:
    found: list[str] = []
    thread = threading.Thread(target=sort)
    vars(thread)["run"] = run = partial(found.append, "ran")
    thread.start()
    thread.join()
    assert found == ["ran"]
    assert vars(thread)["run"] is run


def test_errors_are_those_of_the_function(known: Pages) -> None:
    def fail(*_: object) -> None:
        raise ValueError(is_offloaded())

    block(known, fail)
    with ThreadPool(1) as pool, pytest.raises(ValueError, match="True"):
        pool.map(fail, [1])
    with ThreadPoolExecutor(1) as executor:
        assert str(executor.submit(fail).exception()) == "True"


def test_a_method_of_a_type_in_c_is_a_function_as_well() -> None:
    """It is of no module."""
    with ThreadPoolExecutor(1) as executor, ThreadPool(1) as pool:
        assert list(executor.map(str.upper, "ab")) == pool.map(str.upper, "ab") == ["A", "B"]
        assert pool.starmap(pow, [(2, 3)]) == [8]


@pytest.mark.parametrize("chunksize", [1, 2])
def test_an_error_of_what_a_pool_iterates_over_reaches_the_caller(chunksize: int) -> None:
    with ThreadPool(1) as pool, gevent.Timeout(10), pytest.raises(ZeroDivisionError):
        list(pool.imap(sort, (1 // number for number in (1, 0)), chunksize))


class Direct(ThreadPoolExecutor):
    """An executor without threads."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        future = super().submit(fn, *args, **kwargs)
        context = [self._create_worker_context()] if sys.version_info >= (3, 14) else []
        self._work_queue.get().run(*context)
        return future

    def _adjust_thread_count(self) -> None:
        pass


def test_what_a_native_thread_runs_stays_in_it(known: Pages) -> None:
    block(known, native_ident)
    here, there = run_in_thread(lambda: (native_ident(), Direct().submit(native_ident).result()))
    assert here == there


def test_how_long_a_page_computes_is_not_asked_of_a_task() -> None:
    """It has no method and no path."""
    known = Pages(logging.getLogger("test"), lambda request: len(request.path))
    block(known, sort)
    assert known.found


def test_a_request_that_an_executor_runs_in_its_own_greenlet_stays_a_request() -> None:
    """The request is measured, and no task of it."""
    found: list[Any] = []
    Handlers().run(
        lambda: found.append(Direct().submit(lambda: getattr(gevent.getcurrent(), "task", None)))
    )
    assert found[0].result() is None


def test_a_call_into_c_is_noted_with_its_task() -> None:
    """As one of a request is."""
    noted: list[Any] = []
    until_s = monotonic() + 20
    with interrupted_after(0.002, lambda task, *_: noted.append(task)):
        while not noted and monotonic() < until_s:  # as below, and only where it wakes in time
            thread = threading.Thread(target=get_original("time", "sleep"), args=(LONG_S,))
            thread.start()
            thread.join()
    assert {task.page for task in noted} == {Task(get_original("time", "sleep")).page}


def test_a_call_into_c_is_noted_after_a_turn() -> None:
    """A thread that computes was interrupted."""
    noted: list[Any] = []

    def work() -> None:
        while not getattr(gevent.getcurrent(), "turn", None):
            pass
        while not noted and monotonic() < until_s:  # the watchdog looks for a tenth of the time
            get_original("time", "sleep")(LONG_S)

    until_s = monotonic() + 20
    with interrupted_after(0.002, lambda *each: noted.append(each)):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert noted


def test_a_thread_that_began_after_a_look_has_not_kept_the_hub_at_it() -> None:
    """The hub was idle then."""
    noted: list[Any] = []
    with interrupted_after(60.0, lambda task, *_: noted.append(task)):
        slices = signal.getsignal(SIGNAL).__self__  # type: ignore[union-attr]
        slices._asked_queued_s = slices._queued.seconds()
        slices._asked_s, slices._asked_computed_s = monotonic(), thread_time()
        get_original("time", "sleep")(LONG_S)
        thread = threading.Thread(target=lambda: interrupt_main(SIGNAL))
        thread.start()
        thread.join()
    assert slices._asked_s == inf
    assert not noted


def test_a_task_is_measured_between_its_waits() -> None:
    """One that has begun after a look has not kept the hub at it."""
    found: list[tuple[bool, bool]] = []
    before_s = monotonic()

    def work() -> None:
        task = gevent.getcurrent().task  # type: ignore[attr-defined]
        begun_s = monotonic()
        found.append((task.computed_at(before_s, 0.0), task.computed_at(begun_s, 0.0)))
        gevent.getcurrent().switch_out()  # type: ignore[attr-defined]
        found.append((task.computed_at(begun_s, 0.0), task.computed_at(monotonic(), 0.0)))
        end_wait()
        found.append((task.computed_at(begun_s, 0.0), task.computed_at(monotonic(), 0.0)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, True), (False, False), (False, True)]


def test_a_task_has_not_computed_while_one_that_it_called_has_waited() -> None:
    """Only the one in progress sees the wait."""
    found: list[bool] = []
    before_s = monotonic()

    def work() -> None:
        task = gevent.getcurrent().task  # type: ignore[attr-defined]
        tasks._run(Task(gevent.sleep), gevent.sleep, 0.001)
        found.append(task.computed_at(before_s + 0.001, 0.0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_greenlet_has_no_task_when_it_has_ended() -> None:
    """An executor's thread waits for the next one."""
    with ThreadPoolExecutor(1) as executor:
        greenlet = executor.submit(gevent.getcurrent).result()
        outer = executor.submit(lambda: gevent.getcurrent().task).result()  # type: ignore[attr-defined]
        assert greenlet.task is not outer
        assert greenlet.task.page[2].endswith("._worker")
    gevent.sleep(0)
    assert greenlet.task is None


def test_a_thread_may_run_a_loop_of_asyncio() -> None:
    """It has hooks of its own in the greenlet."""
    found: list[bool] = []

    async def main() -> None:
        await asyncio.sleep(0)
        found.append(gevent.getcurrent().task is not None)  # type: ignore[attr-defined]

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert found == [True]


class Loop:
    """A thread that goes on and on; :meth:`step` blocks in C."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Event] = SimpleQueue()
        self.found: list[bool] = []

    def run(self) -> None:
        while True:
            self.step(self.queue.get())

    def step(self, done: Event) -> None:
        get_original("time", "sleep")(LONG_S / 10)
        self.found.append(is_offloaded())
        done.set()


@pytest.mark.usefixtures("noted_waits")
def test_what_a_thread_calls_again_and_again_runs_in_a_native_thread(
    known: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread itself does not end, so that no next one would."""
    known.is_counting = lambda: False  # in a worker it counts while the watchdog looks
    monkeypatch.setattr(Loop, "step", Loop.step)  # set back at the end
    loop = Loop()
    with interrupted_after(0.002, tasks.note), gevent.Timeout(60):
        threading.Thread(target=loop.run, daemon=True).start()
        while not any(loop.found):
            done = Event()
            loop.queue.put(done)
            done.wait()
            gevent.sleep(0.001)
    assert not loop.found[0]


PARTS = """
import contextlib, functools, sys
from greenline.offload import tasks
from greenline.offload.pages import Task

def note(task):
    for _ in range(3):
        task.go_on()
        tasks.note(task, 1.0, 1.0, sys._getframe())

def function(task): note(task)
class Class:
    def method(self, task): note(task)
    @staticmethod
    def static(task): note(task)
    @classmethod
    def of_class(cls, task): note(task)
    def __call__(self, task): note(task)
    @property
    def prop(self): note(self.task)

class Meta(type):
    def __setattr__(cls, name, value): raise RuntimeError(name)
class Refusing(metaclass=Meta):
    def method(self, task): note(task)

def decorator(func):
    @functools.wraps(func)
    def decorated(task): func(task)
    return decorated
def generator(task):
    yield note(task)
async def coroutine(task): note(task)
def wrapped(task): note(task)
wrapped = decorator(wrapped)
"""


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of an application; what became a task of its own is none afterwards."""
    module: Any = ModuleType("parts")
    monkeypatch.setitem(sys.modules, "parts", module)
    exec(PARTS, vars(module))  # noqa: S102
    yield module
    tasks._parts.clear()


def go_on(func: Callable[..., object]) -> None:
    """Run *func* in a task, in which it blocks between several waits."""
    task = Task(go_on)
    tasks._run(task, lambda: func(task))


@pytest.mark.parametrize(
    "name", ["function", "Class.method", "Class.static", "Class.of_class"]
)  # fmt: skip
def test_a_function_in_progress_becomes_a_task(parts: Any, name: str) -> None:
    """It is the outermost one, under its own name, and does what it did."""
    owner = parts if name == "function" else parts.Class()
    func = name.rpartition(".")[2]
    go_on(lambda task: getattr(owner, func)(task))
    assert getattr(owner, func).__qualname__ == name
    assert getattr(owner, func).__wrapped__
    assert not hasattr(parts.note, "__wrapped__")
    go_on(lambda task: getattr(owner, func)(task))
    assert hasattr(parts.note, "__wrapped__")  # the next one


def test_a_function_that_was_imported_by_its_name_is_the_same(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: Any = ModuleType("other")
    monkeypatch.setitem(sys.modules, "other", other)
    other.renamed = parts.function
    go_on(lambda task: other.renamed(task))
    assert other.renamed is parts.function
    assert parts.function.__wrapped__


def test_an_error_of_a_metaclass_is_none_of_the_task(parts: Any) -> None:
    for _ in range(2):
        go_on(lambda task: parts.Refusing().method(task))
    assert hasattr(parts.note, "__wrapped__")


def test_the_function_of_a_task_is_none_of_its_parts(parts: Any) -> None:
    """It goes on; the next one is a task already."""
    task = Task(parts.function)
    tasks._run(task, parts.function, task)
    assert not hasattr(parts.function, "__wrapped__")
    assert parts.note.__wrapped__


@pytest.mark.parametrize(
    "call",
    [
        lambda parts, task: parts.Class()(task),
        lambda parts, task: list(parts.generator(task)),
        lambda parts, task: next(parts.coroutine(task).__await__(), None),
        lambda parts, task: parts.wrapped(task),
        lambda parts, task: setattr(made := parts.Class(), "task", task) or made.prop,
        lambda parts, task: re.sub("x", lambda _: parts.note(task) or "", "x"),
    ],
    ids=["special", "generator", "coroutine", "decorated", "property", "standard library"],
)
def test_what_is_not_called_by_its_name_stays_what_it_is(parts: Any, call: Any) -> None:
    """The next function inside becomes one."""
    before = dict(vars(parts)), dict(vars(parts.Class))
    go_on(partial(call, parts))
    assert hasattr(parts.note, "__wrapped__")
    assert not hasattr(re.sub, "__wrapped__")
    before[0]["note"] = parts.note
    assert (dict(vars(parts)), dict(vars(parts.Class))) == before


async def awaited(parts: Any, task: Task) -> None:
    await parts.coroutine(task)
    parts.function(task)


def test_what_a_loop_of_asyncio_calls_stays_in_its_thread(parts: Any) -> None:
    """It may ask which loop runs."""
    go_on(lambda task: asyncio.run(awaited(parts, task)))
    assert not tasks._parts


@pytest.mark.parametrize("module", ["torch", OF_ONE_THREAD[0]])
def test_nothing_is_divided_where_a_library_keeps_something_for_a_native_thread(
    parts: Any, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """Its no_grad(), for instance, is that of the thread that called it."""
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    go_on(parts.function)
    assert not tasks._parts


def test_few_functions_become_tasks(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs all of its calls something."""
    monkeypatch.setattr(tasks, "MAX_PARTS", 1)
    for _ in range(2):
        go_on(lambda task: parts.function(task))
    assert len(tasks._parts) == 1


def test_a_task_that_seldom_blocks_is_not_divided(parts: Any) -> None:
    """Neither one that has waited once, nor one that blocks for less than a thread takes."""
    task = Task(go_on)
    for _ in range(MIN_BLOCKED):
        assert not task.blocks_again(LONG_S)
    task = Task(go_on)
    for _ in range(MIN_BLOCKED):
        task.go_on()
        assert not task.blocks_again(BLOCKED_S / 2)
