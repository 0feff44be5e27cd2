"""
Let each greenlet run an asyncio loop of its own, as each thread may.

asyncio keeps one running loop for each native thread, in C, and all greenlets of a worker share
one thread: while a coroutine waits in one greenlet, ``asyncio.run`` in another raises "cannot be
called from a running event loop". Here the running loop, its current task and its hooks for
asynchronous generators belong to a greenlet: they are unset when the greenlet switches to the hub,
and set again before it is resumed. So C code sees them as well.
"""

import asyncio
import sys
import threading
from asyncio import events
from typing import Any

from gevent import getcurrent

# gevent calls ``switch_out`` of a greenlet that switches to the hub, and looks up ``switch`` and
# ``throw`` of a greenlet that it resumes, some of them before that greenlet waits; all on the
# instance. So only a greenlet that runs a loop has an overhead.
HOOKS = ("switch_out", "switch", "throw")

_get_in_thread = events._get_running_loop
_set_in_thread = events._set_running_loop
tasks: Any = asyncio.tasks


def install() -> None:
    """Replace how this process notes the running loop. A second call changes nothing."""
    events._set_running_loop = asyncio._set_running_loop = _set_running_loop
    # Where asyncio was imported before the patching, its policy keeps the current loop per native
    # thread. With the patched threading.local it is kept per greenlet.
    names = "BaseDefaultEventLoopPolicy", "_BaseDefaultEventLoopPolicy"  # since Python 3.14
    policy: Any = next((vars(events)[name] for name in names if name in vars(events)), None)
    if policy is not None and not issubclass(policy._Local, threading.local):
        slots = {"_loop": None, "_set_called": False}
        policy._Local = type("_Local", (threading.local,), slots)
        asyncio.set_event_loop_policy(None)


def is_running() -> bool:
    """Return whether this greenlet runs a loop, or is a child of one that does."""
    return _loop_above(getcurrent()) is not None


def share_with(kind: Any) -> None:
    """
    Let child greenlets, which a coroutine starts, leave its loop too while they wait in the hub.

    :param kind: their class, a subclass of ``greenlet.greenlet``.
    """

    def switch_out(self: Any) -> None:
        if (running := _loop_above(self)) is not None:
            running.switch_out()

    def switch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (running := _loop_above(self)) is not None:
            running.enter()
        return super(kind, self).switch(*args, **kwargs)

    def throw(self: Any, *args: Any) -> Any:
        if (running := _loop_above(self)) is not None:
            running.enter()
        return super(kind, self).throw(*args)

    kind.switch_out, kind.switch, kind.throw = switch_out, switch, throw


def _loop_above(greenlet: Any) -> "_RunningLoop | None":
    """Return the running loop of *greenlet*, or that of its nearest parent that has one."""
    while greenlet is not None:
        if (hook := greenlet.__dict__.get(HOOKS[0])) is not None:
            running: _RunningLoop = hook.__self__
            return running
        greenlet = greenlet.parent
    return None


def _set_running_loop(loop: Any) -> None:
    """Set the loop that runs in this greenlet, None when it has ended."""
    greenlet = getcurrent()
    hooks = greenlet.__dict__
    if loop is not None:
        running = _RunningLoop(greenlet, loop)
        hooks["switch_out"] = running.switch_out
        hooks["switch"], hooks["throw"] = running.switch, running.throw
    elif "switch_out" in hooks:
        hooks["switch_out"].__self__.leave()
        for name in HOOKS:
            del hooks[name]
    else:
        _set_in_thread(None)


class _RunningLoop:
    """
    The running loop of one greenlet: that of the native thread while the greenlet runs.

    :param greenlet: the current one.
    :param loop: the asyncio loop that begins to run in it.
    """

    __slots__ = ("_before", "_generators", "_greenlet", "_is_inside", "_loop", "_task")

    def __init__(self, greenlet: Any, loop: Any) -> None:
        self._greenlet = greenlet
        self._loop = loop
        # Its own child greenlets, such as SQLAlchemy's, switch to it without its leaving.
        self._is_inside = True
        # The hooks for generators are the loop's by now: another loop would close the generators
        # at its end, in the middle.
        self._generators: Any = (None, None)
        self._task: Any = None
        # What a child greenlet of another one, whose class has no hooks, has left while it waits.
        self._before: tuple[Any, Any] = _enter(loop, None), self._generators

    def enter(self) -> None:
        if self._is_inside:
            return
        self._is_inside = True
        self._before = _enter(self._loop, self._task), sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(*self._generators)

    def leave(self) -> None:
        self._is_inside = False
        left, generators = self._before
        self._generators = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(*generators)
        # A task that blocks leaves its loop free for the tasks of other greenlets.
        self._task = _leave(self._loop, left)

    def switch_out(self) -> None:
        self.leave()
        # That of its class, which the hook hides.
        own = getattr(type(self._greenlet), "switch_out", None)
        if own is not None:
            own(self._greenlet)

    def switch(self, *args: Any, **kwargs: Any) -> Any:
        self.enter()
        return type(self._greenlet).switch(self._greenlet, *args, **kwargs)

    def throw(self, *args: Any) -> Any:
        self.enter()
        return type(self._greenlet).throw(self._greenlet, *args)


def _enter(loop: Any, task: Any) -> tuple[Any, Any]:
    """Have *loop* run in the thread, with *task* as the current one; return what they replace."""
    left = _get_in_thread()
    if sys.version_info >= (3, 14):  # the thread has one current task, that of its running loop
        left_task = None if left is None else tasks._swap_current_task(left, None)
        _set_in_thread(loop)
        tasks._swap_current_task(loop, task)
    else:
        left_task = _swap_current_task(loop, task)
        _set_in_thread(loop)
    return left, left_task


def _leave(loop: Any, left: tuple[Any, Any]) -> Any:
    """Restore what :func:`_enter` has returned; return the task of *loop* that is current now."""
    left_loop, left_task = left
    if sys.version_info >= (3, 14):
        task = tasks._swap_current_task(loop, None)
        _set_in_thread(left_loop)
        if left_loop is not None:
            tasks._swap_current_task(left_loop, left_task)
    else:
        task = _swap_current_task(loop, left_task)
        _set_in_thread(left_loop)
    return task


def _swap_current_task(loop: Any, task: Any) -> Any:
    """Do it in the dict of all loops: Python 3.12's own raises a KeyError where none is current."""
    current: dict[Any, Any] = tasks._current_tasks
    left = current.pop(loop, None)
    if task is not None:
        current[loop] = task
    return left
