"""
Give each thread that is a greenlet a ``native_id`` of its own, as threads have.

gevent gives all of them that of the thread that runs the hub: code that asks whether a thread of
this number still lives, as pgAdmin does for a query, would find one for ever.
``threading.get_native_id()`` stays the system's.
"""

import sys
import threading
from itertools import count
from typing import Any

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
    DummyThread.__new__ = _new


# With defaults, because the names of modules are gone before the last destructors run.
def _new(kind: Any, sys: Any = sys, threading: Any = threading) -> Any:
    """Make the object of an unknown thread, which ``threading.current_thread()`` returns."""
    if not sys.is_finalizing():
        return object.__new__(kind)
    # A destructor asks for it when no greenlet is left: threads would have the main one.
    found = threading._active[threading.get_ident()] = threading.main_thread()
    return found


def _set_native_id(self: threading.Thread) -> None:
    # The main thread, which a fork makes anew, and native threads without a hub have the system's.
    is_main = isinstance(self, threading._MainThread)  # type: ignore[attr-defined]
    is_native = is_main or get_hub_if_exists() is None
    number = threading.get_native_id() if is_native else next(_numbers)
    self._native_id = number  # type: ignore[attr-defined]
