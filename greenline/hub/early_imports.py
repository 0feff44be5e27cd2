"""
Let classes of the standard library that were imported before the patching work after it.

gevent replaces them by subclasses. What gunicorn's configuration or preload_app has imported holds
the original classes, or classes and objects made of them; some then no longer do what they did.
"""

import ssl
import threading
from typing import Any

import gevent.monkey
import gevent.ssl

from greenline.hub import early_locks, patching


def mend() -> None:
    """Give the original classes what gevent's have. Call once in a process, after the patching."""
    _let_threads_end()
    _let_contexts_yield()
    patching.rebind()
    early_locks.exchange()


def _let_threads_end() -> None:
    # gevent's threads release a lock when their greenlet ends. Without it join() never returns.
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

    original._bootstrap = run_all_and_release


def _let_contexts_yield() -> None:
    # The original setters call super(SSLContext, SSLContext), and that name is gevent's class now:
    # they call themselves until RecursionError. The original sockets block the hub.
    original: Any = gevent.monkey.get_original("ssl", "SSLContext")
    for name in ("maximum_version", "minimum_version", "options", "verify_flags", "verify_mode"):
        setattr(original, name, vars(gevent.ssl.SSLContext)[name])
    original.wrap_socket = gevent.ssl.SSLContext.wrap_socket
    original.sslsocket_class = ssl.SSLSocket
