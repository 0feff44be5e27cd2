"""
Let classes of threading and queue be what applications know.

gevent replaces events and queues by compiled classes that have their documented methods alone.
Applications use more: attributes of their own on an event, ``mutex`` and ``not_empty`` of a queue,
and the methods that subclasses of a queue define. The standard library's queues are written in
Python, and wait in the locks that gevent has patched.

A thread that a request starts is no daemon, unless it is asked to be one: the worker waits for it
at its end, as for those of real threads.

Until Python 3.11 ``functools.cached_property`` takes a lock that all objects of a class share: a
native ``RLock``, which keeps no greenlet out, and blocks the hub while an offload thread computes,
perhaps for ever. Here it takes none, as from Python 3.12 on.
"""

import functools
import os
import queue
import sys
import threading
from contextlib import suppress
from functools import wraps
from typing import Any

import gevent.monkey
from greenlet import getcurrent

from greenline.hub.gevent_compat import DummyThread
from greenline.hub.thread_locks import Event, SimpleQueue

QUEUES = "Queue", "LifoQueue", "PriorityQueue"


def restore() -> None:
    """Let the standard library's modules have such classes. Call it after the patching."""
    for name in QUEUES:
        setattr(queue, name, gevent.monkey.get_original("queue", name))
    setattr(queue, "SimpleQueue", SimpleQueue)  # noqa: B010
    setattr(threading, "Event", Event)  # noqa: B010
    condition: Any = gevent.monkey.get_original("threading", "Condition")
    condition.wait = _passing_on(condition.wait)
    thread: Any = gevent.monkey.get_original("threading", "Thread")
    thread.__init__ = _no_daemon_of_a_request(thread.__init__)
    if sys.version_info < (3, 12):
        native_lock = gevent.monkey.get_original("_thread", "RLock")
        # A property that exists has a lock already: this goes before it.
        functools.cached_property.lock = property(  # type: ignore[attr-defined]
            lambda _: native_lock(), lambda _, __: None
        )


def _passing_on(wait: Any) -> Any:
    """Return ``Condition.wait``, which leaves no notification to a waiter that is interrupted."""

    @wraps(wait)
    def passing_on(self: Any, timeout: float | None = None) -> bool:
        try:
            return bool(wait(self, timeout))
        except BaseException as error:
            # A thread that was notified goes on. A greenlet may be interrupted before it runs: what
            # it was notified of is there for another one.
            if _was_notified(error):
                with suppress(RuntimeError):  # it has not got the lock of the condition again
                    self.notify()
            raise

    return passing_on


def _was_notified(error: BaseException) -> bool:
    """Return whether ``notify()`` has released the lock in which the wait was interrupted."""
    of_wait = error.__traceback__ and error.__traceback__.tb_next
    waiter = of_wait and of_wait.tb_frame.f_locals.get("waiter")
    return waiter is not None and not waiter.locked()


def _no_daemon_of_a_request(init: Any) -> Any:
    @wraps(init)
    def no_daemon(self: Any, *args: Any, **kwargs: Any) -> None:
        # A request's own thread is a daemon to gevent, as nothing may wait for its end.
        if kwargs.get("daemon") is None and _is_of_main_hub(threading.current_thread()):
            kwargs["daemon"] = False
        init(self, *args, **kwargs)

    return no_daemon


def _is_of_main_hub(thread: threading.Thread) -> bool:
    """Return whether it is a greenlet that threading has not started, of the main thread's hub."""
    if not isinstance(thread, DummyThread):
        return False
    # In an offload thread, it is the caller.
    is_offloaded = threading.get_ident() != id(getcurrent())
    return is_offloaded or threading.get_native_id() == os.getpid()
