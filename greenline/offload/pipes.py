"""
Pipes for greenlets: ``os.read`` and ``os.write`` wait in the hub.

The other end may be held by another greenlet, which would never come to write what the hub waits to
read. A descriptor that does not block is left to its owner.
"""

import os
import select
import stat
from collections.abc import Callable
from typing import Any

import gevent

from greenline.hub import poll
from greenline.hub.deadline import wait_for
from greenline.offload.threads import can_wait

READ_EVENT, WRITE = 1, 2  # libev's events
POLL_EVENTS = {READ_EVENT: select.POLLIN, WRITE: select.POLLOUT}
# What a pipe that can be written to takes without blocking; O_NONBLOCK would be the other
# process's mode as well.
ATOMIC_WRITE_BYTES = select.PIPE_BUF

blocking_read: Callable[[int, int], bytes] = os.read
blocking_write: Callable[[int, Any], int] = os.write


def read(fd: int, length: int, /) -> bytes:
    """Read as :func:`os.read` does; wait in the hub for a pipe that is empty."""
    if _is_waited_for(fd):
        _wait(fd, READ_EVENT)
    return blocking_read(fd, length)


def write(fd: int, data: Any, /) -> int:
    """Write as :func:`os.write` does; wait in the hub for a pipe that is full."""
    if not _is_waited_for(fd):
        return blocking_write(fd, data)
    left = memoryview(data).cast("B")
    size_bytes = len(left)
    while left:
        _wait(fd, WRITE)
        left = left[blocking_write(fd, left[:ATOMIC_WRITE_BYTES]) :]
    return size_bytes


def _is_waited_for(fd: int) -> bool:
    """Return whether *fd* is a pipe that blocks, and the caller may wait in a hub."""
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode) and os.get_blocking(fd) and can_wait()
    except OSError:  # the call itself says why
        return False


def _wait(fd: int, event: int) -> None:
    while not poll.which([fd], POLL_EVENTS[event]):
        loop: Any = gevent.get_hub().loop
        with loop.io(fd, event) as watcher:
            wait_for(watcher)
