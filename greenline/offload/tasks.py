"""
Run in native threads what threads of the application do, where that blocks in C code.

Such a thread is a greenlet: while it sorts an array it keeps the whole worker, as a page would
(:mod:`~greenline.offload.pages`). What counts here, as a page does there, is the function that a
thread runs, or that an executor or a ``ThreadPool`` is given. One in progress stays where it is. So
of a thread that goes on and on, as one that takes work from a queue, a function that its loop calls
becomes a task of its own.
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial, wraps
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType, FunctionType
from typing import Any

import gevent
from greenlet import getcurrent

from greenline.hub import frames
from greenline.hub.gevent_compat import green_thread
from greenline.hub.namespaces import namespaces
from greenline.hub.slices import is_set_for_a_thread
from greenline.hub.thread_locks import SimpleQueue, is_main_thread
from greenline.offload import GREEN, names
from greenline.offload.imports import after_import
from greenline.offload.pages import Pages, Task, may_move

MAX_PARTS = 16
NO_FUNCTION = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR  # their call does not run them

pages: Pages | None = None  # None: all stays in the hub
_parts: set[CodeType] = set()  # of functions that are tasks of their own


class ThreadGreenlet(gevent.Greenlet):  # type: ignore[type-arg]
    """A thread of the application; ``task`` is what it does now, None: nothing that is noted."""

    task: Task | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        frames.note(self)

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
        self.run = partial(_run, Task(_work_of(self)), self.run)
        try:
            bootstrap(self)
        finally:
            if before is None:
                del self.run
            else:
                self.run = before

    return run_task


def _work_of(thread: Any) -> Any:
    if isinstance(thread, threading.Timer):
        return thread.function
    # The target: a library may have replaced run() by a function that it has for all.
    return getattr(thread, "_target", None) or type(thread).run


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


def note(what: Any, blocked_s: float, computed_s: float, frame: FrameType | None) -> None:
    """
    Note that a request or a task has blocked the worker in C code.

    :param what: the request, or a :class:`~greenline.offload.pages.Task`.
    :param blocked_s: for how long, seconds, float.
    :param computed_s: for how long it used the processor meanwhile, seconds, float.
    :param frame: what runs now.
    """
    if pages is None:
        return
    pages.note(what, blocked_s, computed_s)
    if type(what) is Task and what.blocks_again(blocked_s) and len(_parts) < MAX_PARTS:
        _divide(what, frame)


def _divide(task: Task, innermost: FrameType | None) -> None:
    """Make the outermost function of *task* in progress that is none yet a task of its own."""
    # What is set for a native thread, and a loop of asyncio, are those of the caller's thread.
    if not may_move() or is_set_for_a_thread() or _has_a_loop():
        return
    frame, found = innermost, None
    while frame is not None and frame.f_code is not _run.__code__:
        if frame.f_code not in _parts and _name_of(frame) != task.name and _can_be_a_task(frame):
            found = frame
        frame = frame.f_back
    if frame is None or found is None:
        return
    _parts.add(found.f_code)
    module = sys.modules[found.f_globals["__name__"]]
    with suppress(Exception):  # a metaclass may refuse it; an error would be that of the task
        names.replace(module, found.f_code.co_qualname, _as_a_task)


def _has_a_loop() -> bool:
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


def _name_of(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"


def _can_be_a_task(frame: FrameType) -> bool:
    """Return whether the function of *frame* is the one that its module has under its name."""
    code, module = frame.f_code, str(frame.f_globals.get("__name__"))
    package = module.partition(".")[0]
    if package in GREEN or package in sys.stdlib_module_names or code.co_flags & NO_FUNCTION:
        return False
    if code.co_name.startswith("__"):
        return False
    try:
        *_, func = names.find(sys.modules.get(module), code.co_qualname)
    except (AttributeError, TypeError):  # it is local to another function, or its module is gone
        return False
    # Not the property, nor the one that a decorator has wrapped.
    return getattr(func, "__code__", None) is code


def _as_a_task(func: FunctionType) -> Callable[..., Any]:
    @wraps(func)
    def as_a_task(*args: Any, **kwargs: Any) -> Any:
        return _run(Task(func), func, *args, **kwargs)

    # Modules that have imported it by its name.
    for _, namespace in namespaces():
        for name, value in list(namespace.items()):
            if value is func:
                namespace[name] = as_a_task
    return as_a_task


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
        if outer is not None:  # that of the loop which called it, and it may have waited
            outer.go_on()
