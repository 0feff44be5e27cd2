"""
Let each greenlet run an asyncio loop of its own, as each thread may.

asyncio keeps one running loop for each native thread, in C, and all greenlets of a worker share
one thread: while a coroutine waits in one greenlet, ``asyncio.run`` in another raises "cannot be
called from a running event loop". Here the running loop and its current task belong to a greenlet:
they are unset when the greenlet switches to the hub, and set again before it is resumed. So C code
sees them as well.
"""

import asyncio
import threading
from asyncio import events
from typing import Any

from gevent import getcurrent

# gevent calls ``switch_out`` of a greenlet that switches to the hub, and looks up ``switch`` and
# ``throw`` of the greenlet that it resumes, both on the instance. So only a greenlet that runs a
# loop has an overhead.
HOOKS = ("switch_out", "switch", "throw")

_set_in_thread = events._set_running_loop
tasks: Any = asyncio.tasks


def install() -> None:
    """Replace how this process notes the running loop. A second call changes nothing."""
    events._set_running_loop = asyncio._set_running_loop = _set_running_loop
    # Where asyncio was imported before the patching, its policy keeps the current loop per native
    # thread. With the patched threading.local it is kept per greenlet.
    policy: Any = getattr(events, "BaseDefaultEventLoopPolicy", None)
    if policy is not None and not issubclass(policy._Local, threading.local):
        slots = {"_loop": None, "_set_called": False}
        policy._Local = type("_Local", (threading.local,), slots)
        asyncio.set_event_loop_policy(None)


def _set_running_loop(loop: Any) -> None:
    """Set the loop that runs in this greenlet, None when it has ended."""
    _set_in_thread(loop)
    greenlet = getcurrent()
    hooks = greenlet.__dict__
    if loop is not None:
        hooks["switch_out"], hooks["switch"], hooks["throw"] = _hooks(greenlet, loop)
    elif "switch" in hooks:
        for name in HOOKS:
            del hooks[name]


def _hooks(greenlet: Any, loop: Any) -> Any:
    kind = type(greenlet)
    task: Any = None

    def leave() -> None:
        nonlocal task
        # A task that blocks leaves its loop free for the tasks of other greenlets.
        task = _swap_current_task(loop, None)
        _set_in_thread(None)

    def enter() -> None:
        _set_in_thread(loop)
        _swap_current_task(loop, task)

    def switch(*args: Any, **kwargs: Any) -> Any:
        enter()
        return kind.switch(greenlet, *args, **kwargs)

    def throw(*args: Any) -> Any:
        enter()
        return kind.throw(greenlet, *args)

    return leave, switch, throw


def _swap_in_dict(loop: Any, task: Any) -> Any:
    current: dict[Any, Any] = tasks._current_tasks
    left = current.pop(loop, None)
    if task is not None:
        current[loop] = task
    return left


_swap_current_task = getattr(tasks, "_swap_current_task", _swap_in_dict)  # from Python 3.12 on
