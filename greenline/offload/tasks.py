"""
Run in native threads what threads of the application do, where that blocks in C code.

Such a thread is a greenlet: while it sorts an array it keeps the whole worker, as a page would
(:mod:`~greenline.offload.pages`). What counts here, as a page does there, is the function that a
thread runs, or that an executor or a ``ThreadPool`` is given. One in progress stays where it is:
a thread that never ends, and blocks in each of its rounds, still keeps the worker.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

import gevent
from greenlet import getcurrent

from greenline.hub.gevent_compat import green_thread
from greenline.hub.thread_locks import SimpleQueue, is_main_thread
from greenline.offload.imports import after_import
from greenline.offload.pages import Pages, Task

pages: Pages | None = None  # None: all stays in the hub


class ThreadGreenlet(gevent.Greenlet):  # type: ignore[type-arg]
    """A thread of the application; ``task`` is what it does now, None: nothing that is noted."""

    task: Task | None = None

    def switch_out(self) -> None:
        """Note that the task waits; gevent calls this when it switches to the hub."""
        if self.task is not None:
            self.task.switch_out()


def patch() -> None:
    """Replace what threads and pools run; call it after gevent's patches."""
    green_thread.Greenlet = ThreadGreenlet
    thread: Any = threading.Thread
    thread._bootstrap_inner = _running_task(thread._bootstrap_inner)
    executor: Any = ThreadPoolExecutor
    executor.submit = _submitting_task(executor.submit)
    after_import("multiprocessing.pool", _patch_pool)


def _running_task(bootstrap: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(bootstrap)
    def run_task(self: Any) -> None:
        before = vars(self).get("run")  # Sentry sets one
        # The target: a library may have replaced run() by a function that it has for all.
        self.run = partial(_run, Task(getattr(self, "_target", None) or type(self).run), self.run)
        try:
            bootstrap(self)
        finally:
            if before is None:
                del self.run
            else:
                self.run = before

    return run_task


def _submitting_task(submit: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(submit)
    def submit_task(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, partial(_run, Task(fn), fn), *args, **kwargs)

    return submit_task


class _Queue(SimpleQueue):
    """From which the threads of a ``ThreadPool`` get what they are to do."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        found = super().get(*args, **kwargs)
        if not isinstance(found, tuple):
            return found
        job, number, func, arguments, keywords = found
        # Of map() it is one of these, which get the function in the first item of their argument.
        is_map = getattr(func, "__name__", "") in ("mapstar", "starmapstar")
        name = arguments[0][0] if is_map else func
        return job, number, partial(_run, Task(name), func), arguments, keywords


def _patch_pool(module: Any) -> None:
    def set_up_queues(self: Any) -> None:
        set_up(self)
        self._inqueue = _Queue()
        self._quick_put = self._inqueue.put

    set_up = module.ThreadPool._setup_queues
    module.ThreadPool._setup_queues = wraps(set_up)(set_up_queues)


def _run(task: Task, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if pages is None or not is_main_thread():
        return func(*args, **kwargs)
    blocking = pages.find_task(task) if pages.found else None
    if blocking is not None:
        return blocking.call(partial(func, *args, **kwargs))
    me = getcurrent()
    if type(me) is not ThreadGreenlet:  # an executor may call it in the greenlet of a request
        return func(*args, **kwargs)
    outer, me.task = me.task, task
    task.go_on()
    try:
        return func(*args, **kwargs)
    finally:
        me.task = outer
