"""Hold a folder for one process, by a lock on the folder itself: no lock file is left behind."""

import fcntl
import os
from pathlib import Path

from greenline.errors import ConfigError


class FolderLock:
    """A lock that ends with the process that took it, however that ends; no child inherits it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether we have it."""
        return self._fd is not None

    def take(self, wait: bool = False) -> None:
        """
        Take the lock; take it twice and nothing happens.

        Raises:
            ConfigError: another process holds it, and *wait* is false.
        """
        if self._fd is not None:
            return
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(fd)
            raise ConfigError(
                f"GREENLINE_DATA: {self.folder} is in use by another run; "
                "stop that one, or set GREENLINE_DATA to another folder"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Give the lock back, if we have it."""
        if self._fd is not None:
            # Not by the close alone: in a process that gevent patched it comes later.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> "FolderLock":
        self.take(wait=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
