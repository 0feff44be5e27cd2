"""
Where the file of a slot table lies, and whether what lies there can be ours.

1. It is made complete under another name and then linked: nobody ever opens a half of it.
2. What belongs to somebody else, or may be written by others, is refused and left as it is.
"""

import hashlib
import io
import os
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISREG

from greenline.errors import ConfigError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
# What a file begins with: who made it, and how its content is laid out.
HEADER = struct.pack("=qq", int.from_bytes(b"grnledgr", sys.byteorder), 1)


def path(key: str, folder: Path | None = None) -> Path:
    """
    Return the path of the slot table of the server that *key* names, as in ``"db.example:5432"``.

    In shared memory, else in the temporary folder, one for each user: call it as the user that
    works. One server needs one key: a socket and a host name of it would be two slot tables.
    """
    if folder is None:
        has_memory = os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
        folder = SHARED_MEMORY if has_memory else Path(tempfile.gettempdir())
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return folder / f"greenline-{os.geteuid()}-{digest}"


def open_file(path: Path, size: int) -> io.FileIO:
    """Open our file at *path*, made if need be; a file object: gevent closes descriptors late."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        while True:
            try:
                file = io.FileIO(os.open(path, flags), "r+")
                break
            except FileNotFoundError:
                _create(path, size)
    except OSError as error:
        raise refused(path, f"it cannot be opened ({error.strerror})") from error
    status = os.fstat(file.fileno())
    if not S_ISREG(status.st_mode):
        trouble = "it is no regular file"
    elif status.st_uid != os.geteuid():
        trouble = f"it belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif S_IMODE(status.st_mode) & 0o077:
        trouble = f"it may be used by others (mode {S_IMODE(status.st_mode):04o})"
    else:
        return file
    file.close()
    raise refused(path, trouble)


def _create(path: Path, size: int) -> None:
    """Make the file, or let another be the first; a power cut in between leaves a stray file."""
    fd, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with io.FileIO(fd, "r+"):
            fill(path, fd, size)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def fill(path: Path, fd: int, size: int) -> None:
    """Write it anew, header last; its room is taken now, since a store without any is a SIGBUS."""
    try:
        os.ftruncate(fd, 0)
        os.posix_fallocate(fd, 0, size)
        os.pwrite(fd, HEADER, 0)
    except OSError as error:
        raise refused(path, f"it cannot be written ({error.strerror})") from error


def refused(path: Path, trouble: str) -> ConfigError:
    """Return the error that names the file and what is wrong with it."""
    return ConfigError(f"{path}: {trouble}; greenline needs a file of its own there")
