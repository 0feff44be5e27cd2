"""What threads of the application do runs in native threads, once it has blocked in C code."""

import asyncio
import logging
import signal
import threading
from _thread import interrupt_main
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from math import inf
from multiprocessing.pool import ThreadPool
from time import monotonic, thread_time
from typing import Any

import gevent
import pytest
from gevent.monkey import get_original

from greenline.hub.handlers import Handlers, end_wait
from greenline.hub.slices import SIGNAL
from greenline.offload import tasks
from greenline.offload.pages import MIN_BLOCKED, Pages, Task
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
    [of_target, partial(submitted, ThreadPoolExecutor), mapped, applied, by_asyncio],
    ids=["thread", "executor", "map", "apply", "asyncio"],
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
        self._work_queue.get().run()
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
    with interrupted_after(0.002, lambda task, *_: noted.append(task)):
        thread = threading.Thread(target=get_original("time", "sleep"), args=(LONG_S,))
        thread.start()
        thread.join()
    assert {task.page for task in noted} == {Task(get_original("time", "sleep")).page}


def test_a_thread_that_began_after_a_look_has_not_kept_the_hub_at_it() -> None:
    """The hub was idle then."""
    noted: list[Any] = []
    with interrupted_after(60.0, lambda task, *_: noted.append(task)):
        slices = signal.getsignal(SIGNAL).__self__  # type: ignore[union-attr]
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
