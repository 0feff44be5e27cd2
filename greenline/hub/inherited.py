"""
Let workers share the memory of what their arbiter has loaded.

A collection writes into each object that it looks at, and so does a list of all objects; the system
copies each page that is written to. So the arbiter excludes its objects from collections before it
forks, and notes those few that a worker has to find again.
"""

import gc
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Set
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any

import gevent.monkey

from greenline.hub.namespaces import namespaces

BATCH = 50  # objects looked at together: few of them hold a lock

_noted: list[Any] = []
_applications: list[Any] = []


def native_kinds() -> dict[type, Callable[[], Any]]:
    """Return the unpatched classes of locks and queues, each with the one that replaces it."""
    native: Callable[[str, str], Any] = gevent.monkey.get_original
    return {
        type(native("_thread", "allocate_lock")()): threading.Lock,
        native("_thread", "RLock"): threading.RLock,
        native("queue", "SimpleQueue"): queue.SimpleQueue,
    }


def freeze() -> None:
    """Exclude the objects that exist from collections; an arbiter does so before it forks."""
    if _noted:  # what comes later is little, and may be garbage one day
        return
    _noted.append(_hooks_of_children())
    gc.collect()
    # A function refers to the globals of its module, and to no lock itself.
    every = [each for each in gc.get_objects() if type(each) is not FunctionType]
    kinds = native_kinds().keys()
    for start in range(0, len(every), BATCH):
        batch = every[start : start + BATCH]
        if _hold(batch, kinds):
            _noted.extend(each for each in batch if _hold([each], kinds))
    _noted.extend(_instances(every, gevent.monkey.get_original("threading", "local")))
    if flask := sys.modules.get("flask.app"):
        _applications.extend(_instances(every, flask.Flask))
    gc.freeze()


def _hold(objects: list[Any], kinds: Set[type]) -> bool:
    """Return whether one of the objects, or a dict of theirs, has a value of these kinds."""
    held = gc.get_referents(*objects)
    dicts = [one for one in held if type(one) is dict]
    return not kinds.isdisjoint(map(type, chain(held, gc.get_referents(*dicts))))


def _instances(objects: list[Any], base: type) -> list[Any]:
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, base)}
    return [each for each in objects if type(each) in kinds] if kinds else []


def objects() -> Iterator[Any]:
    """
    Return the objects that a collection looks at, and of the others those that were noted.

    Modules and their globals are among them: a hook of the configuration may make a lock later.
    """
    found = [each for each in sys.modules.values() if issubclass(type(each), ModuleType)]
    return chain(_noted, found, (each for _, each in namespaces()), gc.get_objects())


def applications() -> list[Any]:
    """Return the applications of Flask among what was excluded."""
    return _applications


def forget() -> None:
    """Let go of the locks that were noted: a worker has exchanged them."""
    _noted.clear()


def _hooks_of_children() -> list[Any]:
    """Return the interpreter's list of the functions that a forked child calls."""

    def last() -> None:
        pass

    os.register_at_fork(after_in_child=last)
    for hooks in gc.get_referrers(last):
        if type(hooks) is list and hooks[-1] is last:
            hooks.pop()
            return hooks
    return []
