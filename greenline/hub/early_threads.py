"""
Let a thread end whose class was imported before the patching.

gevent replaces ``threading.Thread`` and ``Timer`` by subclasses whose threads release a lock when
their greenlet ends. What gunicorn's configuration or preload_app has imported holds the original
classes, or classes built on them; such a thread would never end for ``join()`` and ``is_alive()``.
"""

import threading
from typing import Any

import gevent.monkey


def install() -> None:
    """Release the lock of each such thread as well. Call once in a process, after the patching."""
    original: Any = gevent.monkey.get_original("threading", "Thread")
    if not hasattr(original, "_set_tstate_lock"):  # Python 3.13: a handle does it, for all classes
        return
    run_all = original._bootstrap

    def run_all_and_release(thread: Any) -> None:
        try:
            run_all(thread)
        finally:
            # gevent's own does it itself; in a child that was forked meanwhile there may be none.
            if not isinstance(thread, threading.Thread) and thread._tstate_lock:
                thread._tstate_lock.release()
                thread._stop()

    original._bootstrap = run_all_and_release
