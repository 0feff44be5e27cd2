"""
Wait for the disk in native threads, in calls that may take long: they write a file to the disk, or
copy a whole one.
"""

import os
import stat
from typing import Any

from greenline.offload.threads import Turns

MIN_COPIED_BYTES = 1024 * 1024  # copies of less take a fraction of a millisecond

# Threads that wait need no core. A file is closed by its greenlet when the call has left it.
_turns = Turns(8, is_left=False)

_copy_file_range: Any = getattr(os, "copy_file_range", None)  # not on macOS
_fdatasync: Any = getattr(os, "fdatasync", None)
_fsync = os.fsync
_sendfile: Any = os.sendfile


def patch() -> None:
    """Replace the functions of ``os``."""
    os.fsync, os.sendfile = fsync, sendfile
    if _fdatasync is not None:
        os.fdatasync = fdatasync
    if _copy_file_range is not None:
        os.copy_file_range = copy_file_range


def fsync(fd: Any) -> None:
    """Write a file to the disk as :func:`os.fsync` does, with its parameters."""
    _turns.run(_fsync, fd)


def fdatasync(fd: Any) -> None:
    """Write a file to the disk as :func:`os.fdatasync` does, with its parameters."""
    _turns.run(_fdatasync, fd)


def sendfile(out_fd: Any, in_fd: Any, offset: Any, count: int, *args: Any, **kwargs: Any) -> int:
    """Send as :func:`os.sendfile` does, with its parameters; in a thread into a regular file."""
    send: Any = _sendfile
    if count >= MIN_COPIED_BYTES and _is_regular(out_fd):
        return _turns.run(send, out_fd, in_fd, offset, count, *args, **kwargs)  # type: ignore[no-any-return]
    return send(out_fd, in_fd, offset, count, *args, **kwargs)  # type: ignore[no-any-return]


def copy_file_range(src: Any, dst: Any, count: int, *args: Any, **kwargs: Any) -> int:
    """Copy as :func:`os.copy_file_range` does, with its parameters."""
    if count < MIN_COPIED_BYTES:
        return _copy_file_range(src, dst, count, *args, **kwargs)  # type: ignore[no-any-return]
    return _turns.run(_copy_file_range, src, dst, count, *args, **kwargs)  # type: ignore[no-any-return]


def _is_regular(fd: Any) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except (OSError, TypeError):
        return False  # the call says what is wrong
