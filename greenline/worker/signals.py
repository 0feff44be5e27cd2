"""
Restrict ``signal.signal`` and ``set_wakeup_fd`` to the main greenlet, as Python does to the main
thread.

All greenlets run in the main thread, so any request could set a handler. One that raises would
interrupt an arbitrary greenlet, or the hub, which ends the worker; one for SIGTERM would replace
gunicorn's.
"""

import os
import signal
from functools import wraps
from typing import Any

from gevent.hub import Hub
from greenlet import getcurrent

set_handler = signal.signal  # for the worker's own handlers, which any greenlet may run


def keep_to_main_greenlet() -> None:
    """Let both raise ValueError in other greenlets; call it in a worker, after gevent's patches."""
    signal.signal = _kept(signal.signal, "signal")
    # asyncio calls this first. Signal numbers would be written to the descriptor even after it was
    # closed and its number reused.
    signal.set_wakeup_fd = _kept(signal.set_wakeup_fd, "set_wakeup_fd")


def _kept(patched: Any, name: str) -> Any:
    pid = os.getpid()

    # The error is Python's own: libraries that set handlers catch it outside of the main thread.
    @wraps(patched)
    def kept(*args: Any, **kwargs: Any) -> Any:
        current = getcurrent()
        is_main = current.parent is None or isinstance(current, Hub)
        # In a child the forking greenlet is the main one: subprocess restores signals there.
        if not is_main and os.getpid() == pid:
            raise ValueError(f"{name} only works in main thread of the main interpreter")
        return patched(*args, **kwargs)

    return kept
