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
from collections.abc import Callable, Iterator
from itertools import chain
from types import ModuleType
from typing import Any

import gevent.monkey

from greenline.hub.namespaces import namespaces

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
    """Exclude the objects that exist from collections; the arbiter does so before it forks."""
    _noted.append(_hooks_of_children())
    gc.collect()
    kinds, local = native_kinds().keys(), gevent.monkey.get_original("threading", "local")
    flask = sys.modules.get("flask.app")
    of_flask = () if flask is None else flask.Flask
    for each in gc.get_objects():
        if issubclass(type(each), of_flask):
            _applications.append(each)
        held = gc.get_referents(each)
        values = chain(held, *(one.values() for one in held if type(one) is dict))
        if issubclass(type(each), local) or not kinds.isdisjoint(map(type, values)):
            _noted.append(each)
    gc.freeze()


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
