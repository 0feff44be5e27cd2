"""
Let events, queues and conditions of the standard library be what applications know.

gevent replaces events and queues by compiled classes that have their documented methods alone.
Applications use more: attributes of their own on an event, ``mutex`` and ``not_empty`` of a queue,
and the methods that subclasses of a queue define. The standard library's queues are written in
Python, and wait in the locks that gevent has patched.
"""

import queue
import threading
from typing import Any

import gevent.monkey
from gevent.event import Event

from greenline.hub.gevent_compat import LockType

QUEUES = "Queue", "LifoQueue", "PriorityQueue"


def restore() -> None:
    """Let the standard library's modules have such classes. Call it after the patching."""
    for name in QUEUES:
        setattr(queue, name, gevent.monkey.get_original("queue", name))
    # Not its own, which takes six times as long: each start of a thread waits for one.
    members: dict[str, Any] = {"__module__": "threading", "__doc__": threading.Event.__doc__}
    setattr(threading, "Event", type("Event", (Event,), members))  # noqa: B010
    condition: Any = gevent.monkey.get_original("threading", "Condition")
    condition._is_owned = _is_owned


def _is_owned(condition: Any) -> bool:
    """Return whether the lock of *condition* is held, as ``notify()`` asks."""
    # The standard library tries to acquire it, and gevent switches to other greenlets where that
    # fails. A notify() is no wait: its caller may hold what it has taken out of a queue.
    lock = condition._lock
    if isinstance(lock, LockType):
        return bool(lock.locked())
    if is_free := lock.acquire(False):
        lock.release()
    return not is_free
