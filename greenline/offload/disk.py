"""
Wait for the disk in native threads, in calls that may take long: they write a file to the disk, or
copy a whole one.

Databases written in Python, such as ZODB's, wait for the disk at each commit.
"""

import os
import stat
from typing import Any

from greenline.offload.threads import Turns

MIN_COPIED_BYTES = 1024 * 1024  # copies of less take a fraction of a millisecond

# Threads that wait need no core. A file is closed by its greenlet when the call has left it. No
# deadline ends one, as none ends the write before: a database that does not know what is on its
# disk refuses to go on.
_turns = Turns(8, is_left=False, has_deadline=False)

_copy_file_range: Any = getattr(os, "copy_file_range", None)  # not on macOS
_fdatasync: Any = getattr(os, "fdatasync", None)  # not on macOS
_fsync = os.fsync
_sendfile: Any = os.sendfile
_sync = os.sync


def patch() -> None:
    """Replace the functions of ``os``."""
    os.fsync, os.sendfile, os.sync = fsync, sendfile, sync
    if _fdatasync is not None:
        os.fdatasync = fdatasync
    if _copy_file_range is not None:
        os.copy_file_range = copy_file_range


def fsync(fd: Any) -> None:
    """Write a file to the disk as :func:`os.fsync` does, with its parameters."""
    _turns.run(_fsync, _number(fd))


def fdatasync(fd: Any) -> None:
    """Write a file to the disk as :func:`os.fdatasync` does, with its parameters."""
    _turns.run(_fdatasync, _number(fd))


def sync() -> None:
    """Write all files to the disk as :func:`os.sync` does."""
    _turns.run(_sync)


def sendfile(out_fd: Any, in_fd: Any, offset: Any, count: int, *args: Any, **kwargs: Any) -> int:
    """Send as :func:`os.sendfile` does, with its parameters; in a thread into a regular file."""
    is_long = _is_long(in_fd, out_fd, count)
    sent: int = _turns.run_if(is_long, _sendfile, out_fd, in_fd, offset, count, *args, **kwargs)
    return sent


def copy_file_range(src: Any, dst: Any, count: int, *args: Any, **kwargs: Any) -> int:
    """Copy as :func:`os.copy_file_range` does, with its parameters."""
    is_long = _is_long(src, dst, count)
    copied: int = _turns.run_if(is_long, _copy_file_range, src, dst, count, *args, **kwargs)
    return copied


def _number(fd: Any) -> Any:
    """Return the descriptor of a file, whose ``fileno()`` belongs to the greenlet."""
    return fd.fileno() if hasattr(fd, "fileno") else fd


def _is_long(of: Any, to: Any, count: Any) -> bool:
    """Return whether much is copied, into a regular file: a socket takes what it has room for."""
    try:
        # shutil asks for eight megabytes at least, however small the file is.
        return (
            count >= MIN_COPIED_BYTES
            and os.fstat(of).st_size >= MIN_COPIED_BYTES
            and stat.S_ISREG(os.fstat(to).st_mode)
        )
    except (OSError, TypeError):
        return False  # the call says what is wrong
