"""
Keep ``signal.signal`` to the main greenlet, as Python keeps it to the main thread.

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
    """Let ``signal.signal`` fail in any other greenlet: in a worker, after gevent's patches."""
    patched = signal.signal
    pid = os.getpid()

    @wraps(patched)
    def keeping(signalnum: Any, handler: Any, /) -> Any:
        current = getcurrent()
        is_main = current.parent is None or isinstance(current, Hub)
        # In a child the forking greenlet is the main one: subprocess restores signals there.
        if not is_main and os.getpid() == pid:
            raise ValueError("signal only works in main thread of the main interpreter")
        return patched(signalnum, handler)

    signal.signal = keeping  # type: ignore[assignment]
