"""
Let greenlets wait for file locks: a lock that is held is tried again, after pauses in the hub.

The holder may be another greenlet, which cannot release the lock while the hub is blocked.
Native threads would not do either: one would be needed for each waiter.
"""

import errno
import fcntl
import os
from collections.abc import Callable
from typing import Any, TypeVar

from greenline.hub.backoff import Backoff
from greenline.offload.threads import can_wait

HELD_ERRORS = {errno.EAGAIN, errno.EACCES}
# The commands that wait, and their counterparts that do not wait.
WAITING_COMMANDS = {fcntl.F_SETLKW: fcntl.F_SETLK}
if hasattr(fcntl, "F_OFD_SETLKW"):
    WAITING_COMMANDS[fcntl.F_OFD_SETLKW] = fcntl.F_OFD_SETLK

T = TypeVar("T")

_fcntl: Callable[..., Any] = fcntl.fcntl
_flock: Callable[..., None] = fcntl.flock
_lockf: Callable[..., None] = fcntl.lockf
_os_lockf: Callable[..., None] = os.lockf


def _until_free(attempt: Callable[..., T], *args: Any) -> T:
    """Call *attempt* until the lock is not held elsewhere."""
    backoff = Backoff()
    while True:
        try:
            return attempt(*args)
        except OSError as error:
            if error.errno not in HELD_ERRORS:
                raise
        backoff.wait()


def flock(fd: Any, operation: int, /) -> None:
    """Lock a file as :func:`fcntl.flock` does, with the same parameters; wait in the hub."""
    if operation & (fcntl.LOCK_NB | fcntl.LOCK_UN) or not can_wait():
        _flock(fd, operation)
    else:
        _until_free(_flock, fd, operation | fcntl.LOCK_NB)


def lockf(fd: Any, cmd: int, len: int = 0, start: int = 0, whence: int = 0, /) -> None:  # noqa: A002
    """Lock a range of a file as :func:`fcntl.lockf` does, with its parameters; wait in the hub."""
    if cmd & (fcntl.LOCK_NB | fcntl.LOCK_UN) or not can_wait():
        _lockf(fd, cmd, len, start, whence)
    else:
        _until_free(_lockf, fd, cmd | fcntl.LOCK_NB, len, start, whence)


def fcntl_(fd: Any, cmd: int, arg: Any = 0, /) -> Any:
    """Act as :func:`fcntl.fcntl`, with the same parameters; wait for a lock in the hub."""
    if cmd not in WAITING_COMMANDS or not can_wait():
        return _fcntl(fd, cmd, arg)
    return _until_free(_fcntl, fd, WAITING_COMMANDS[cmd], arg)


def os_lockf(fd: int, command: int, length: int, /) -> None:
    """Lock a range of a file as :func:`os.lockf` does, with its parameters; wait in the hub."""
    if command != os.F_LOCK or not can_wait():
        _os_lockf(fd, command, length)
    else:
        _until_free(_os_lockf, fd, os.F_TLOCK, length)
