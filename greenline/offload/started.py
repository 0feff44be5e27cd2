"""
Let the threads that code in an offload thread starts run in the main hub, as all others do.

Such a thread is a greenlet. In the offload thread it would stand still between that thread's waits,
such as a worker of an executor that a request shares with others.
"""

import _thread
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from greenline.hub.gevent_compat import get_hub_if_exists
from greenline.offload import threads

# By module, the functions that start a thread; which ones there are depends on Python's version.
STARTS = {
    _thread: ("start_new", "start_new_thread", "start_joinable_thread"),
    threading: ("_start_new_thread", "_start_joinable_thread"),
}


def patch() -> None:
    """Replace the functions that start a thread; call it after gevent's patches."""
    for module, names in STARTS.items():
        for name in names:
            if hasattr(module, name):
                setattr(module, name, _in_main_hub(getattr(module, name)))
    if handle := getattr(_thread, "_ThreadHandle", None):  # from Python 3.13 on
        handle.join = _from_any_thread(handle.join)


def _in_main_hub(start: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(start)
    def start_there(*args: Any, **kwargs: Any) -> Any:
        if threads.is_offloaded():
            return threads.call_in_main_hub(start, *args, **kwargs)
        return start(*args, **kwargs)

    return start_there


def _from_any_thread(join: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(join)
    def join_there(self: Any, timeout: float | None = -1) -> Any:
        greenlet = self._get_greenlet()
        loop, own = getattr(greenlet, "loop", None), get_hub_if_exists()
        if loop is None or (own is not None and own.loop is loop):
            return join(self, timeout)
        # It is of another thread's hub: gevent would switch to it here.
        has_ended = threading.Event()
        loop.run_callback_threadsafe(greenlet.rawlink, lambda _: has_ended.set())
        has_ended.wait(None if timeout == -1 else timeout)
        return None

    return join_there
