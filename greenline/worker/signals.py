"""
Keep ``signal.signal`` and ``set_wakeup_fd`` to the main greenlet, as Python to the main thread.

A request that runs in a thread cannot set a handler: ``ValueError``. All greenlets run in the main
thread, so there it could. A handler that raises would then interrupt whatever greenlet runs, or the
hub, which ends the worker; and one for SIGTERM would take the place of gunicorn's.
"""

import os
import signal
from functools import wraps
from typing import Any

from gevent.hub import Hub
from greenlet import getcurrent

set_handler = signal.signal  # for the worker's own handlers, which any greenlet may run


def keep_to_main_greenlet() -> None:
    """Let both fail in any other greenlet: in a worker, after gevent's patches."""
    signal.signal = _kept(signal.signal, "signal")
    # asyncio sets this one first: signal numbers would be written to whatever has its number next.
    signal.set_wakeup_fd = _kept(signal.set_wakeup_fd, "set_wakeup_fd")


def _kept(patched: Any, name: str) -> Any:
    pid = os.getpid()

    @wraps(patched)
    def kept(*args: Any, **kwargs: Any) -> Any:
        current = getcurrent()
        is_main = current.parent is None or isinstance(current, Hub)
        # In a child the forking greenlet is the main one: subprocess restores signals there.
        if not is_main and os.getpid() == pid:
            raise ValueError(f"{name} only works in main thread of the main interpreter")
        return patched(*args, **kwargs)

    return kept
