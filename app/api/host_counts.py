"""
A storage of the library ``limits``: request counts by time window, exact for a host's processes.

The counts are in a shared memory file, so they survive a replaced worker, a reload and an upgrade
of gunicorn. The file has a fixed size: ``GROUPS`` groups of ``WAYS`` counts. A key belongs to one
group.
"""

import fcntl
import mmap
import os
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from time import monotonic, sleep, time

from limits.storage import Storage

from greenline.slots.location import HEADER, open_file

GROUPS, WAYS = 2048, 16
# A group's cells of eight bytes: WAYS digests of keys, WAYS ends of windows, WAYS counts.
GROUP_ENDS, COUNTS, GROUP_CELLS = WAYS, 2 * WAYS, 3 * WAYS
HEADER_BYTES = 64
FILE_SIZE = HEADER_BYTES + 8 * GROUPS * GROUP_CELLS
COUNTS_RETRY_S, COUNTS_TIMEOUT_S = 0.001, 1.0
CHECK_FILE_S = 1.0

# Record locks belong to the process, so they do not exclude its own threads: this lock does.
_threads = Lock()


class HostCounts(Storage):
    """
    The counts in a file, which is created if it does not exist.

    :param path: of the file, Path.
    :raises ConfigError: the file cannot be used.
    """

    STORAGE_SCHEME = None

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._check_file_at = 0.0
        self._open()

    def __repr__(self) -> str:
        return f"<HostCounts {self._path}>"

    @property
    def base_exceptions(self) -> type[Exception]:
        """Return the errors of this storage."""
        return OSError

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """
        Add to the count of *key*, in one step for all processes.

        :param key: what is counted, str.
        :param expiry: length of the window in seconds, which begins with the first count.
        :param amount: how much is added. Default 1.
        :returns: the count with *amount*.
        """
        group, digest = _located(key)
        until = 0.0
        while True:
            with _threads:
                self._reopen_if_removed()
                # After COUNTS_TIMEOUT_S it counts without the lock: a process may have been stopped
                # (SIGSTOP) while it holds it, and an inexact count is better than no service.
                if self._try_lock(group) or (until and monotonic() >= until):
                    try:
                        return self._add(group * GROUP_CELLS, digest, expiry, amount)
                    finally:
                        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, FILE_SIZE + group)
            # Outside of the thread lock: the other greenlets of this worker run meanwhile.
            until = until or monotonic() + COUNTS_TIMEOUT_S
            sleep(COUNTS_RETRY_S)

    def get(self, key: str) -> int:
        """Return the count of *key* in its window, 0 where there is none."""
        cell, end = self._find(key)
        return self._cells[cell + COUNTS] if end > time() else 0

    def get_expiry(self, key: str) -> float:
        """Return when the window of *key* ends, in seconds since the epoch."""
        return max(self._find(key)[1], time())

    def clear(self, key: str) -> None:
        """End the window of *key*."""
        cell, end = self._find(key)
        if end:
            self._times[cell + GROUP_ENDS] = 0.0

    def reset(self) -> None:
        """End all windows."""
        self._memory[HEADER_BYTES:] = bytes(FILE_SIZE - HEADER_BYTES)

    def check(self) -> bool:
        """Return True: the file exists as long as this object."""
        return True

    def close(self) -> None:
        """Close the file; the counts stay for the other processes."""
        self._file.close()

    # A critical section: no greenlet switches in it, and each store is of eight bytes, so that a
    # process that is killed here leaves a whole count or an ended window.
    def _add(self, group: int, digest: int, expiry: float, amount: int) -> int:
        cells, times, now = self._cells, self._times, time()
        try:
            cell = group + cells[group : group + WAYS].tolist().index(digest)
        except ValueError:
            cell = group + self._way_to_replace(group, now)
            times[cell + GROUP_ENDS] = (
                0.0  # before the digest: the count is of the old key until then
            )
            cells[cell] = digest
        # An end later than a whole window is from before the clock was set back.
        if now < times[cell + GROUP_ENDS] <= now + expiry:
            cells[cell + COUNTS] += amount
        else:
            cells[cell + COUNTS] = amount
            times[cell + GROUP_ENDS] = now + expiry  # last: it makes the count valid
        return cells[cell + COUNTS]

    def _way_to_replace(self, group: int, now: float) -> int:
        # The smallest count goes if no window has ended: a client that sends from many addresses
        # must not remove the large counts of its own.
        ends = self._times[group + GROUP_ENDS : group + GROUP_ENDS + WAYS].tolist()
        counts = self._cells[group + COUNTS : group + COUNTS + WAYS].tolist()
        return min(range(WAYS), key=lambda way: (counts[way] if ends[way] > now else -1, ends[way]))

    def _find(self, key: str) -> tuple[int, float]:
        """Return the first cell of *key* and the end of its window, 0 where it has none."""
        number, digest = _located(key)
        group = number * GROUP_CELLS
        try:
            cell = group + self._cells[group : group + WAYS].tolist().index(digest)
        except ValueError:
            return group, 0.0
        return cell, self._times[cell + GROUP_ENDS]

    def _try_lock(self, group: int) -> bool:
        """Lock *group*; return False if another process holds the lock."""
        # A record lock: the kernel releases it when its process ends, and no forked child keeps it.
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, FILE_SIZE + group)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _reopen_if_removed(self) -> None:
        """Open the file anew if it was removed, as systemd's RemoveIPC does at a logout."""
        # Once a second: a count costs no system call for this.
        if monotonic() < self._check_file_at:
            return
        self._check_file_at = monotonic() + CHECK_FILE_S
        try:
            is_in_place = os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            is_in_place = False
        if not is_in_place:
            self._file.close()
            self._open()

    def _open(self) -> None:
        file = open_file(self._path, FILE_SIZE)
        if not _is_sound(file.fileno()):
            # A damaged file is replaced, with the loss of its counts: it must not stop the service.
            file.close()
            with suppress(FileNotFoundError):
                self._path.unlink()
            file = open_file(self._path, FILE_SIZE)
        self._file, self._fd = file, file.fileno()
        self._memory = mmap.mmap(self._fd, FILE_SIZE)
        cells = memoryview(self._memory)[HEADER_BYTES:]
        self._cells, self._times = cells.cast("q"), cells.cast("d")
        self._check_file_at = monotonic() + CHECK_FILE_S


def _is_sound(fd: int) -> bool:
    return os.fstat(fd).st_size == FILE_SIZE and os.pread(fd, len(HEADER), 0) == HEADER


@lru_cache(1024)
def _located(key: str) -> tuple[int, int]:
    """Return the number of the group of *key*, and the digest that identifies it there."""
    # Not hash(): its seed differs between processes.
    digest = blake2b(key.encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8]) % GROUPS, int.from_bytes(digest[8:], signed=True)
