"""
Give each thread that is a greenlet a ``native_id`` of its own, as threads have.

gevent gives all of them that of the thread that runs the hub: code that asks whether a thread of
this number still lives, as pgAdmin does for a query, would find one for ever.
``threading.get_native_id()`` stays the system's.

And a thread that a request starts is no daemon, unless it is asked to be one: the worker waits for
it at its end, as for those of real threads.
"""

import os
import threading
from functools import wraps
from itertools import count
from typing import Any

import gevent.monkey

from greenline.hub.gevent_compat import DummyThread, get_hub_if_exists

MAX_SYSTEM = 2**22  # the highest number of a thread of Linux's, by proc(5)
_numbers = count(MAX_SYSTEM + 1)  # none is used twice in a process


def install() -> None:
    """Replace gevent's numbers; call it after gevent's patches."""
    threading.Thread._set_native_id = _set_native_id  # type: ignore[attr-defined]
    create = DummyThread.__init__

    def create_with_number(self: threading.Thread) -> None:
        create(self)
        _set_native_id(self)

    # For greenlets that something else than threading has started.
    DummyThread.__init__ = create_with_number
    thread: Any = gevent.monkey.get_original("threading", "Thread")
    thread.__init__ = _no_daemon_of_a_request(thread.__init__)


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
    return threading.get_native_id() == os.getpid()


def _set_native_id(self: threading.Thread) -> None:
    # The main thread, which a fork makes anew, and native threads without a hub have the system's.
    is_main = isinstance(self, threading._MainThread)  # type: ignore[attr-defined]
    is_native = is_main or get_hub_if_exists() is None
    number = threading.get_native_id() if is_native else next(_numbers)
    self._native_id = number  # type: ignore[attr-defined]
