"""
Give each thread that is a greenlet a ``native_id`` of its own, as threads have.

gevent gives all of them that of the thread that runs the hub: code that asks whether a thread of
this number still lives, as pgAdmin does for a query, would find one for ever.
``threading.get_native_id()`` stays the system's.
"""

import threading

from gevent.threading import _DummyThread  # type: ignore[import-not-found]


def install() -> None:
    """Replace gevent's numbers; call it after gevent's patches."""
    threading.Thread._set_native_id = _set_native_id  # type: ignore[attr-defined]
    # For greenlets that something else than threading has started.
    _DummyThread.native_id = property(lambda thread: thread.ident)


def _set_native_id(self: threading.Thread) -> None:
    # That of its greenlet: an address, far above the numbers of the system's threads.
    self._native_id = threading.get_ident()  # type: ignore[attr-defined]
