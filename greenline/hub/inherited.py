"""
Let workers share the memory of what their arbiter has loaded.

A collection writes into each object that it looks at, and so does a list of all objects; the system
copies each page that is written to. So the arbiter excludes its objects from collections before it
forks, and notes those few that a worker has to find again.
"""

import gc
import queue
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import gevent.monkey

_noted: list[Any] = []


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
    gc.collect()
    kinds, local = native_kinds().keys(), gevent.monkey.get_original("threading", "local")
    for each in gc.get_objects():
        held = gc.get_referents(each)
        values = chain(held, *(one.values() for one in held if type(one) is dict))
        if issubclass(type(each), local) or not kinds.isdisjoint(map(type, values)):
            _noted.append(each)
    gc.freeze()


def objects() -> Iterator[Any]:
    """Return the objects that a collection looks at, and of the others those that were noted."""
    return chain(_noted, gc.get_objects())
