"""
Wait in the hub for other processes where ``multiprocessing`` waits in C or in system calls.

A blocked hub is a deadlock if the other process waits for a greenlet of this one, such as the
thread of a queue or of a pool.
"""

import os
from collections.abc import Callable
from functools import partial
from time import time
from typing import Any

import gevent
from gevent.monkey import get_original
from gevent.os import fork_and_watch, fork_gevent

from greenline.hub import poll
from greenline.hub.gevent_compat import (
    closing_descriptors,
    get_hub_if_exists,
    watch_child,
    watched_children,
)
from greenline.offload import semaphores, threads
from greenline.offload.imports import after_import
from greenline.offload.pipes import (
    ATOMIC_WRITE_BYTES,
    POLL_EVENTS,
    READ_EVENT,
    WRITE,
    blocking_read,
    blocking_write,
)
from greenline.offload.semaphores import hub_to_wait_in


def install() -> None:
    """Replace the waits in a process whose standard library is patched. Call once."""
    semaphores.install()
    os.fork = partial(_fork, os.fork)
    # Looked up now: at the end of the interpreter it could not be.
    if os.close is not (at_once := get_original("os", "close")):  # an older gevent closes at once
        os.close = partial(_close, at_once, os.close)
    after_import("multiprocessing.connection", _patch_connection)
    after_import("multiprocessing.util", _patch_util)
    after_import("multiprocessing.popen_forkserver", _patch_forkserver)


def _patch_connection(module: Any) -> None:
    connection = module.Connection
    connection.__init__ = _blocking(connection.__init__)
    connection._recv.__defaults__ = (_read,)
    connection._send.__defaults__ = (_write,)
    connection._close.__defaults__ = (os.close,)


def _patch_util(module: Any) -> None:
    module.spawnv_passfds = partial(_watched, module.spawnv_passfds)


def _watched(spawn: Callable[..., int], *args: Any) -> int:
    """Start a process by *spawn* so that ``os.waitpid`` waits for it in the hub."""
    if threads.is_offloaded():
        return _watched_in_main_hub(partial(spawn, *args))
    if not _watches_children():
        return spawn(*args)
    pid: int = fork_and_watch(fork=partial(spawn, *args))
    return pid


def _fork(watched: Callable[[], int]) -> int:
    if threads.is_offloaded():
        return _watched_in_main_hub(fork_gevent)
    return watched() if _watches_children() else fork_gevent()


def _watched_in_main_hub(start: Callable[[], int]) -> int:
    """Call *start* here, in an offload thread, and let the main hub watch the child."""
    loop: Any = threads.main_hub().loop
    ends: dict[int, int] = {}

    def begin() -> Any:
        # For any child: the main hub reaps this one, perhaps before its number is known here.
        watcher = loop.child(0, ref=False)
        watcher.start(lambda: ends.update({watcher.rpid: watcher.rstatus}))
        return watcher

    def finish(pid: int) -> None:
        watcher.close()
        if pid in ends:
            watched_children[pid] = (pid, ends[pid], time())
        elif pid:
            watch_child(pid, loop=loop)

    watcher = threads.call_in_main_hub(begin)
    pid = 0
    try:
        pid = start()
    finally:
        if threads.is_offloaded():  # not so in the child
            threads.call_in_main_hub(finish, pid)
    return pid


def _watches_children() -> bool:
    """Return whether this thread's hub can watch children."""
    # libev reports children in the default loop only; a watcher in another one raises an error.
    return bool(gevent.get_hub().loop.default)


def _blocking(init: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, handle: int, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, handle, *args, **kwargs)
        # gevent puts sockets into non-blocking mode, which the other process would share.
        os.set_blocking(self._handle, True)

    return __init__


def _patch_forkserver(module: Any) -> None:
    from multiprocessing import connection

    def poll(self: Any, flag: int = os.WNOHANG) -> int | None:
        """Return the exit status of a forkserver's child, which can be read from a pipe once."""
        if self.returncode is None:
            timeout_s = 0 if flag == os.WNOHANG else None
            is_there = connection.wait([self.sentinel], timeout_s)
            # Each start of a process polls all children, so another greenlet may have read the
            # status during this wait. The original would read the end of the pipe, and return 255.
            if is_there and self.returncode is None:
                try:
                    self.returncode = module.forkserver.read_signed(self.sentinel)
                except (OSError, EOFError):  # the forkserver was killed
                    self.returncode = 255
        status: int | None = self.returncode
        return status

    module.Popen.poll = poll


def _read(number: int, size: int) -> bytes:
    _wait(number, READ_EVENT)
    return blocking_read(number, size)


def _write(number: int, data: Any) -> int:
    _wait(number, WRITE)
    return blocking_write(number, data[:ATOMIC_WRITE_BYTES])


def _wait(number: int, event: int) -> None:
    """Wait until the descriptor *number* is ready; without a hub the next call blocks instead."""
    hub = hub_to_wait_in()
    if hub is None or poll.which([number], POLL_EVENTS[event]):
        return
    watcher = hub.loop.io(number, event)
    try:
        hub.wait(watcher)
    finally:
        watcher.close()


def _close(at_once: Callable[[int], None], later: Callable[[int], None], number: int) -> None:
    """Close a descriptor at once; by *later*, gevent's function, if a greenlet waits for it."""
    # To close each one later would be a deadlock for a parent that closes its end of a pipe and
    # then reads until the child closes its end.
    hub = get_hub_if_exists()
    is_waited_for = hub is not None and (
        number in closing_descriptors or hub.loop.closing_fd(number)
    )
    (later if is_waited_for else at_once)(number)
