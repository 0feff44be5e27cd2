"""
Let greenlets wait for pipes and terminals: ``os.read`` waits in the hub, and so do ``os.write``
to a pipe and the file that ``open()`` makes of a pipe's descriptor.

Another greenlet may hold the other end, and cannot write or read while the hub is blocked. A
descriptor in non-blocking mode is left to its owner.
"""

import io
import os
import select
import stat
import termios
from collections.abc import Callable
from typing import Any

import gevent

from greenline.hub import poll
from greenline.hub.buffers import BufferedReader, BufferedWriter
from greenline.hub.deadline import wait_for
from greenline.offload.threads import can_wait

READ_EVENT, WRITE = 1, 2  # libev's events
POLL_EVENTS = {READ_EVENT: select.POLLIN, WRITE: select.POLLOUT}
# A writable pipe takes so many bytes without blocking. O_NONBLOCK is no way out: it would be set
# for the other process as well.
ATOMIC_WRITE_BYTES = select.PIPE_BUF

blocking_read: Callable[[int, int], bytes] = os.read
blocking_write: Callable[[int, Any], int] = os.write
blocking_open: Callable[..., Any] = io.open


def read(fd: int, length: int, /) -> bytes:
    """Read as :func:`os.read` does, with its parameters; wait in the hub where it is empty."""
    if _is_waited_for(fd, or_terminal=True):
        _wait(fd, READ_EVENT)
    return blocking_read(fd, length)


def write(fd: int, data: Any, /) -> int:
    """Write as :func:`os.write` does, with its parameters; wait in the hub for a full pipe."""
    if not _is_waited_for(fd):
        return blocking_write(fd, data)
    # A blocking pipe takes all bytes, so this writes all, in parts that do not block.
    left = memoryview(data).cast("B")
    size_bytes = len(left)
    while left:
        _wait(fd, WRITE)
        left = left[blocking_write(fd, left[:ATOMIC_WRITE_BYTES]) :]
    return size_bytes


class PipeIO(io.FileIO):
    """The unbuffered file of a pipe."""

    def read(self, size: int | None = -1, /) -> Any:
        return io.RawIOBase.read(self, -1 if size is None else size)

    def readall(self) -> Any:
        return io.RawIOBase.readall(self)

    def readinto(self, buffer: Any, /) -> int | None:
        if _is_waited_for(self.fileno()):
            _wait(self.fileno(), READ_EVENT)
        return super().readinto(buffer)

    def write(self, data: Any, /) -> int:
        if self.writable() and _is_waited_for(self.fileno()):
            return write(self.fileno(), data)
        return super().write(data)


class Open:
    """Holds ``open()``: a plain function in the body of a class would become its method."""

    @classmethod
    def open(
        cls,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """Open as :func:`open` does, with its parameters; wait in the hub if it is a pipe's."""
        if type(file) is not int or not _is_pipe(file):
            return blocking_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        # It checks the parameters, and knows the encoding.
        native = blocking_open(file, mode, buffering, encoding, errors, newline, closefd=False)
        raw = PipeIO(file, mode.replace("b", "").replace("t", ""), closefd)
        if buffering == 0:
            return raw
        kind = BufferedReader if raw.readable() else BufferedWriter
        buffer = kind(raw, buffering if buffering > 1 else os.fstat(file).st_blksize)
        if "b" in mode:
            return buffer
        text: Any = io.TextIOWrapper(
            buffer, native.encoding, native.errors, newline, buffering == 1
        )
        text.mode = mode
        return text


def _is_pipe(fd: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:  # open() raises the error
        return False


def _is_waited_for(fd: int, *, or_terminal: bool = False) -> bool:
    """Return whether *fd* is a pipe in blocking mode and the caller may wait in a hub."""
    try:
        mode = os.fstat(fd).st_mode
        is_one = stat.S_ISFIFO(mode) or (or_terminal and stat.S_ISCHR(mode) and _is_terminal(fd))
        return is_one and os.get_blocking(fd) and can_wait()
    except OSError:  # the read or write raises the error
        return False


def _is_terminal(fd: int) -> bool:
    """Return whether *fd* is a terminal whose reads wait for something to read."""
    if not os.isatty(fd):
        return False
    *_, at_least = termios.tcgetattr(fd)
    # Where it is 0, a read ends after a time of its own, and there is no event for that.
    return at_least[termios.VMIN] not in (0, b"\0")


def _wait(fd: int, event: int) -> None:
    # Polled again after each wait: another greenlet may have emptied or filled the pipe.
    while not poll.which([fd], POLL_EVENTS[event]):
        loop: Any = gevent.get_hub().loop
        with loop.io(fd, event) as watcher:
            wait_for(watcher)
