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
# ``throw`` of the greenlet that it resumes, both on the instance. So only a greenlet that runs a
# loop has an overhead.
HOOKS = ("switch_out", "switch", "throw", "enter_loop")

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
    return bool(_hooks_above(getcurrent()))


def share_with(kind: Any) -> None:
    """
    Let child greenlets, which a coroutine starts, leave its loop too while they wait in the hub.

    :param kind: their class, a subclass of ``greenlet.greenlet``.
    """

    def switch_out(self: Any) -> None:
        if hooks := _hooks_above(self):
            hooks["switch_out"]()

    def switch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if hooks := _hooks_above(self):
            hooks["enter_loop"]()
        return super(kind, self).switch(*args, **kwargs)

    def throw(self: Any, *args: Any) -> Any:
        if hooks := _hooks_above(self):
            hooks["enter_loop"]()
        return super(kind, self).throw(*args)

    kind.switch_out, kind.switch, kind.throw = switch_out, switch, throw


def _hooks_above(greenlet: Any) -> dict[str, Any]:
    """Return the hooks of *greenlet* or of its nearest parent that runs a loop; empty: none."""
    while greenlet is not None:
        hooks: dict[str, Any] = greenlet.__dict__
        if HOOKS[0] in hooks:
            return hooks
        greenlet = greenlet.parent
    return {}


def _set_running_loop(loop: Any) -> None:
    """Set the loop that runs in this greenlet, None when it has ended."""
    greenlet = getcurrent()
    hooks = greenlet.__dict__
    if loop is not None:
        made = _hooks(greenlet, loop)
        made["enter_loop"]()
        hooks.update(made)
    elif "switch_out" in hooks:
        hooks["switch_out"]()
        for name in HOOKS:
            del hooks[name]
    else:
        _set_in_thread(None)


def _hooks(greenlet: Any, loop: Any) -> dict[str, Any]:
    kind = type(greenlet)
    task: Any = None
    # run_forever() has just set those of the loop. Another loop would close the generators at its
    # end, in the middle.
    generators: Any = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    # What a child greenlet of another one, whose class has no hooks, has left while it waits.
    before: tuple[Any, Any, Any] = (None, None, (None, None))
    # Its own child greenlets, such as SQLAlchemy's, switch to it without its leaving.
    is_inside = False

    def leave() -> None:
        nonlocal task, generators, is_inside
        is_inside = False
        generators = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(*before[2])
        # A task that blocks leaves its loop free for the tasks of other greenlets.
        task = _swap_current_task(loop, before[1])
        _set_in_thread(before[0])

    def enter() -> None:
        nonlocal before, is_inside
        if is_inside:
            return
        is_inside = True
        left = asyncio._get_running_loop()
        _set_in_thread(loop)
        before = left, _swap_current_task(loop, task), sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(*generators)

    def switch(*args: Any, **kwargs: Any) -> Any:
        enter()
        return kind.switch(greenlet, *args, **kwargs)

    def throw(*args: Any) -> Any:
        enter()
        return kind.throw(greenlet, *args)

    return dict(zip(HOOKS, (leave, switch, throw, enter), strict=True))


def _swap_in_dict(loop: Any, task: Any) -> Any:
    current: dict[Any, Any] = tasks._current_tasks
    left = current.pop(loop, None)
    if task is not None:
        current[loop] = task
    return left


# Python 3.12 has its own, which raises a KeyError where no task is current.
if sys.version_info >= (3, 14):
    _swap_current_task = tasks._swap_current_task
else:
    _swap_current_task = _swap_in_dict
