"""
Let each greenlet run an asyncio loop of its own, as each thread may.

asyncio keeps the running loop in C, once for a thread, and all greenlets of a worker are in one
thread: while a coroutine waits in one, ``asyncio.run`` in another one raises "cannot be called from
a running event loop". Here the running loop belongs to its greenlet: it is unset as soon as that
greenlet switches to the hub, and set again before the greenlet goes on. So C code sees it too.

Only a greenlet that runs a loop pays for it. gevent calls ``switch_out`` of a greenlet that
switches to the hub, and looks up ``switch`` and ``throw`` of the greenlet that it resumes, both on
the instance.
"""

import asyncio
import sys
import threading
from asyncio import events
from typing import Any

from gevent import getcurrent

HOOKS = ("switch_out", "switch", "throw")

_set_in_thread = events._set_running_loop


def install() -> None:
    """Do so for all loops of the process. A second call changes nothing."""
    events._set_running_loop = asyncio._set_running_loop = _set_running_loop
    # Each greenlet has its own current loop, also where asyncio was imported before the patching.
    policy: Any = getattr(events, "BaseDefaultEventLoopPolicy", None)
    if policy is not None and not issubclass(policy._Local, threading.local):
        slots = {"_loop": None, "_set_called": False}
        policy._Local = type("_Local", (threading.local,), slots)
        asyncio.set_event_loop_policy(None)


def _set_running_loop(loop: Any) -> None:
    """Note that *loop* runs in this greenlet; None: no loop does."""
    _set_in_thread(loop)
    hooks = getcurrent().__dict__
    if loop is None:
        for name in HOOKS:
            hooks.pop(name, None)
    else:
        hooks.update(zip(HOOKS, _hooks(getcurrent(), loop), strict=True))


def _hooks(greenlet: Any, loop: Any) -> Any:
    kind = type(greenlet)
    task: Any = None

    def leave() -> None:
        nonlocal task
        if sys.version_info >= (3, 14):  # there the thread has a current task, too
            task = asyncio.tasks._swap_current_task(loop, None)
        _set_in_thread(None)

    def enter() -> None:
        _set_in_thread(loop)
        if sys.version_info >= (3, 14):
            asyncio.tasks._swap_current_task(loop, task)

    def switch(*args: Any, **kwargs: Any) -> Any:
        enter()
        return kind.switch(greenlet, *args, **kwargs)

    def throw(*args: Any) -> Any:
        enter()
        return kind.throw(greenlet, *args)

    return leave, switch, throw
