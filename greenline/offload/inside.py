"""
Let code in an offload thread use sockets, ``select`` and programs, as the requests do.

Such code is a callback of a driver, or a function that ``GREENLINE_OFFLOAD`` names. gevent's
objects belong to the hub of the thread that has made them, and work in no other; children can be
watched in the main hub alone. Here all of them belong to the main hub. A wait for a descriptor
blocks the offload thread, or runs in the thread's own hub if it has one, and what starts a program
or waits for it runs in the main hub meanwhile.
"""

import os
import select
from collections.abc import Callable
from errno import EBADF
from functools import wraps
from itertools import chain
from typing import Any

import gevent
import gevent.select
import gevent.selectors
import gevent.subprocess
from gevent.monkey import get_original
from greenlet import getcurrent

from greenline.hub import epoll, gevent_compat
from greenline.hub.gevent_compat import set_hub
from greenline.offload import threads
from greenline.offload.imports import after_import

READ, WRITE = 1, 2  # libev's
OF_POPEN = "__init__", "communicate", "poll", "wait"
OF_OS = (
    "posix_spawn", "posix_spawnp", "system", "wait", "wait3", "wait4", "waitid", "waitpid",
)  # fmt: skip

_native_poll = (get_original("select", "poll"),)  # greenline.hub.patching exchanges it otherwise
_native_select = (get_original("select", "select"),)


def patch() -> None:
    """Replace gevent's methods, when the first offload thread begins."""
    hub: Any = gevent_compat.Hub
    for name in ("cancel_wait", "cancel_waits_close_and_then"):
        setattr(hub, name, _soon(getattr(hub, name)))
    green_socket: Any = gevent_compat._Socket
    green_socket.__init__ = _made_in_main_hub(green_socket.__init__)
    green_socket._wait = _wait_of_socket(green_socket._wait)
    file = gevent_compat.file_objects
    file.wait_on_watcher = _wait_of_file(file.wait_on_watcher)
    descriptor = file.GreenFileDescriptorIO
    descriptor.__init__ = _made_in_main_hub(descriptor.__init__)
    green_poll: Any = gevent.select.poll
    green_poll.__init__ = _made_in_main_hub(green_poll.__init__)
    green_poll.poll = _poll(green_poll.poll)
    epoll.epoll.poll = _epoll(epoll.epoll.poll)  # type: ignore[method-assign]
    setattr(select, "select", _select(select.select))  # noqa: B010
    selector: Any = gevent.selectors.GeventSelector
    for name in ("close", "modify", "register", "select", "unregister"):
        setattr(selector, name, _of_selector(getattr(selector, name)))
    popen: Any = gevent.subprocess.Popen
    for owner, names in ((popen, OF_POPEN), (os, OF_OS)):
        for name in names:
            if hasattr(owner, name):  # not all on macOS
                setattr(owner, name, _run_by(threads.run_in_main_hub, getattr(owner, name)))
    after_import("multiprocessing.popen_fork", _patch_process)


def _patch_process(module: Any) -> None:
    # Forked here, the child would have a hub in which no program can be waited for.
    module.Popen._launch = _run_by(threads.run_in_main_hub, module.Popen._launch)


def _soon(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def call_soon(self: Any, *args: Any) -> None:
        # Not waited for: a file that is closed holds a lock of C, for which the hub may wait.
        if threads.is_offloaded() and self is threads.main_hub() and _has_waiter(args[0]):
            self.loop.run_callback_threadsafe(method, self, *args)
        else:
            method(self, *args)

    return call_soon


def _has_waiter(watchers: Any) -> bool:
    each = watchers if isinstance(watchers, tuple) else (watchers,)
    return any(watcher is not None and watcher.callback is not None for watcher in each)


def _run_by(run: Callable[..., Any], func: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(func)
    def run_there(*args: Any, **kwargs: Any) -> Any:
        if threads.is_offloaded():
            return run(func, *args, **kwargs)
        return func(*args, **kwargs)

    return run_there


def _made_in_main_hub(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        main = threads.main_hub()
        if main is None or not threads.is_offloaded():
            init(self, *args, **kwargs)
            return
        own = gevent_compat.get_hub_if_exists()
        set_hub(main)  # watchers are made, and not started
        try:
            init(self, *args, **kwargs)
        finally:
            set_hub(own)  # type: ignore[arg-type]  # it may be None

    return __init__


def _wait_of_socket(wait: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(wait)
    def wait_for(self: Any, watcher: Any, *args: Any, **kwargs: Any) -> Any:
        if not threads.is_offloaded():
            return wait(self, watcher, *args, **kwargs)
        if not _is_ready(watcher, self.timeout):
            raise next(chain(args, kwargs.values()), TimeoutError("timed out"))
        return None

    return wait_for


def _wait_of_file(wait: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(wait)
    def wait_for(watcher: Any, *args: Any) -> Any:
        return _is_ready(watcher, None) if threads.is_offloaded() else wait(watcher, *args)

    return wait_for


def _is_ready(watcher: Any, timeout_s: float | None) -> bool:
    if watcher is None:  # the socket was closed
        raise OSError(EBADF, os.strerror(EBADF))
    own = gevent_compat.get_hub_if_exists()
    if own is None or getcurrent() is own:
        return bool(_polled({watcher.fd: watcher.events}, timeout_s))
    # The thread has a hub: it has other greenlets, or a deadline.
    mine = own.loop.io(watcher.fd, watcher.events)
    try:
        with gevent.Timeout(timeout_s, False):  # type: ignore[arg-type]
            own.wait(mine)
            return True
    finally:
        mine.close()
    return False


def _polled(events: dict[int, int], timeout_s: float | None) -> list[tuple[int, int]]:
    poll: Any = _native_poll[0]()
    for fd, which in list(events.items()):  # the request may register one
        poll.register(
            fd, (select.POLLIN if which & READ else 0) | (select.POLLOUT if which & WRITE else 0)
        )
    return list(poll.poll(None if timeout_s is None else timeout_s * 1000))


def _of_selector(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def run_there(self: Any, *args: Any, **kwargs: Any) -> Any:
        # One that was made in the thread waits in the thread's own hub.
        if threads.is_offloaded() and vars(self).get("hub") is threads.main_hub():
            return threads.run_in_main_hub(method, self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return run_there


def _poll(poll: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(poll)
    def poll_here(self: Any, timeout: float | None = None) -> Any:
        if threads.is_offloaded():
            return _polled(self.fds, None if timeout is None or timeout < 0 else timeout / 1000)
        return poll(self, timeout)

    return poll_here


def _epoll(poll: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(poll)
    def poll_here(self: Any, *args: Any, **kwargs: Any) -> Any:
        if threads.is_offloaded():
            return self.native.poll(*args, **kwargs)
        return poll(self, *args, **kwargs)

    return poll_here


def _select(green: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(green)
    def select_here(*args: Any) -> Any:
        return (_native_select[0] if threads.is_offloaded() else green)(*args)

    return select_here
