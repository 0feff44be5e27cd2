"""Choose where the file of a slot table lies, create it, and refuse one that is not safe to use."""

import hashlib
import io
import mmap
import os
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE, S_ISREG

from greenline.errors import ConfigError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
# The first bytes of a file: a mark of greenline, and the version of the layout.
HEADER = struct.pack("=qq", int.from_bytes(b"grnledgr", sys.byteorder), 1)


def path(key: str, folder: Path | None = None) -> Path:
    """
    Return the path of the slot table of the server *key*, for instance ``"db.example:5432"``.

    The file lies in shared memory if that is writable, else in the temporary folder, one for each
    user: call the function as the user of the workers. Use one key for one server: a socket and a
    host name of the same server would give two slot tables.

    :param key: the name of the server, str.
    :param folder: the folder of the file, Path. Default: as above.
    """
    if folder is None:
        has_memory = os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
        folder = SHARED_MEMORY if has_memory else Path(tempfile.gettempdir())
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return folder / f"greenline-{os.geteuid()}-{digest}"


def open_file(path: Path, size: int) -> io.FileIO:
    """
    Open the file at *path* for reading and writing; create it if it does not exist.

    :param path: the location of the file, Path.
    :param size: the size of a new file in bytes, int.
    :returns: a file object, because gevent closes bare descriptors late.
    :raises ConfigError: the file cannot be opened, is not a regular file, belongs to another user,
        or may be read or written by others. It is left as it is.
    """
    # The folder is writable by other users: a symbolic link is not followed, and a FIFO or a
    # terminal at the path neither blocks nor becomes the controlling terminal. The rest is checked
    # on the open file, which cannot be replaced between the check and the use.
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


def open_mapped(path: Path, size: int) -> tuple[io.FileIO, mmap.mmap]:
    """
    Open the file at *path* as :func:`open_file` does, for locks, and map it.

    :param path: the location of the file, Path.
    :param size: the size of the file in bytes, int.
    :raises ConfigError: as :func:`open_file`, or it is no file of greenline's of this size.
    """
    file = open_file(path, size)
    # Opened twice: mmap duplicates its descriptor, which would keep the locks after close().
    with open_file(path, size) as other:
        if os.fstat(other.fileno()).st_size != size or other.read(len(HEADER)) != HEADER:
            file.close()
            raise refused(path, "it is damaged")
        return file, mmap.mmap(other.fileno(), size)


def _create(path: Path, size: int) -> None:
    """Create the file, unless another process does first; a power cut may leave a stray file."""
    # The file is completed under another name and then linked, so that no process opens half of it.
    # os.link() fails if the path exists, where os.rename() would replace a file in use.
    fd, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with io.FileIO(fd, "r+"):
            fill(path, fd, size)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def fill(path: Path, fd: int, size: int) -> None:
    """
    Write an empty table into an open file, of which nothing is kept.

    :param path: the location, for the error's text, Path.
    :param fd: the descriptor of the file, int.
    :param size: its size in bytes, int.
    :raises ConfigError: the file cannot be written.
    """
    try:
        os.ftruncate(fd, 0)
        # Allocated now: a store into a mapped page for which there is no memory left ends the
        # process with SIGBUS.
        os.posix_fallocate(fd, 0, size)
        # Last: a process that is killed before this leaves a file that is seen to be damaged.
        os.pwrite(fd, HEADER, 0)
    except OSError as error:
        raise refused(path, f"it cannot be written ({error.strerror})") from error


def refused(path: Path, trouble: str) -> ConfigError:
    """
    Return the error for a file that cannot be used.

    :param path: the location of the file, Path.
    :param trouble: the reason, str.
    """
    return ConfigError(f"{path}: {trouble}; greenline needs a file of its own there")
