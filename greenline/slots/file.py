"""
Map the file of a slot table: its layout, its locks, and the check and repair of its content.

The locks are those of an open file description (``F_OFD_SETLK``): the kernel releases them when its
last descriptor is closed, however the process ends.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from greenline.slots.location import HEADER, fill, open_file, refused

SLOTS, ROWS = 4096, 256
FREE, CONNECTING, HELD = range(3)  # states of a slot

# The numbers of the cells, of eight bytes each: the header, three for each process row, then
# the backend's pid of each slot. A cell is written by one store of eight bytes, so that a reader
# never sees half of a number. Only the holder of a row's or a slot's lock writes its cells,
# hints excepted.
LAST_REQUEST_UNTIL, ROWS_USED = 2, 3
PUBLISHED_CAPACITY = 8  # the capacity that a process has read from the server
CAPACITY, HOST_COUNT, HOST_NUMBER, SERVER, SEEN, LEASED_UNTIL = range(9, 15)  # LeasedSlotTable's
REQUESTED_UNTIL = 16
HOLDS = REQUESTED_UNTIL + ROWS
RESERVED_UNTIL = HOLDS + ROWS
PIDS = RESERVED_UNTIL + ROWS
CELLS = PIDS + SLOTS
# Then one byte for each slot: its state, and the byte that is locked. The byte of a process row is
# locked only, so it may lie behind the end of the file.
STATES = 8 * CELLS
SIZE = STATES + SLOTS
ROW_LOCKS = SIZE

LOCK_RETRY_S, LOCK_TIMEOUT_S = 0.01, 1.0
RANGE = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, len, pid

_files: "WeakSet[SlotFile]" = WeakSet()


class SlotFile:
    """
    The slot table's file, created if it does not exist, and a process row in it.

    :param path: the location of the file, Path.
    :param patience_s: seconds to wait for a free row or for a repair, float. Default 1.
    :raises ConfigError: the file cannot be used; the text names the file and the reason.
    """

    def __init__(self, path: Path, patience_s: float = LOCK_TIMEOUT_S) -> None:
        self.path = path
        until = time.monotonic() + patience_s
        while (trouble := self._try()) is not None:
            if time.monotonic() >= until:
                raise refused(path, trouble)
            time.sleep(LOCK_RETRY_S)
        # The row may still have the hints of a process that was killed.
        self.cells[HOLDS + self.row] = 0
        self.times[REQUESTED_UNTIL + self.row] = self.times[RESERVED_UNTIL + self.row] = 0.0
        _files.add(self)

    def __repr__(self) -> str:
        return f"<SlotFile {self.path} row={self.row}>"

    def close(self) -> None:
        """Release all locks; a second call has no effect."""
        self.locks.close()

    def remove_unused(self) -> None:
        """
        Remove the file if no other process uses it and no slot is held. Call it before ``close()``.
        """
        if self.locks.closed or any(self.states(0, SLOTS)):
            return
        # A process that has just opened this file finds another one at the path when it maps it,
        # and tries again.
        if lock(self.locks.fileno(), 0, 0) and self.is_in_place():
            with suppress(OSError):
                os.unlink(self.path)

    def require_open(self) -> None:
        """
        Check that this process opened the file.

        :raises RuntimeError: the file is closed, by ``close()`` or because this process was forked.
        """
        if self.locks.closed:
            raise RuntimeError(
                f"{self.path} is closed here; a process opens the slot table itself, after the fork"
            )

    def is_in_place(self) -> bool:
        """Return whether the path still names this file."""
        try:
            return os.path.samestat(os.stat(self.path, follow_symlinks=False), self._status)
        except OSError:
            return False

    def lock(self, slot: int) -> bool:
        """
        Lock *slot*; return False if another process holds the lock, True also if this one already
        does.
        """
        return lock(self.locks.fileno(), STATES + slot)

    def unlock(self, slot: int) -> None:
        """Release the lock of *slot*."""
        unlock(self.locks.fileno(), STATES + slot)

    def unlocked(
        self, first: int, mine: Container[int], max_asked: int
    ) -> Iterator[tuple[int, bool]]:
        """
        Find slots that are in use but not locked, and lock them.

        :param first: the number of the slot to begin at, int.
        :param mine: the numbers of the slots that this process has locked, which are skipped.
        :param max_asked: the largest number of questions to the kernel, int.
        :returns: an iterator over pairs: the number of the slot to continue at, and whether the
            slot before that was unlocked and is locked by this process now.
        """
        states = self.states(0, SLOTS).rstrip(b"\0")
        number = first
        while number < len(states) and max_asked:
            # The kernel reports no conflict with locks of the same description, so this process's
            # own slots would seem to be unlocked.
            if states[number] == FREE or number in mine:
                number += 1
                continue
            max_asked -= 1
            behind = self._locked_until(number)
            is_unlocked = behind == number and self.lock(number)
            # Adjacent locks of one process are merged by the kernel: one answer may cover many
            # slots.
            number = max(behind, number + 1)
            yield number, is_unlocked
        yield number if number < len(states) else 0, False

    def state(self, slot: int) -> int:
        """
        Return the state of *slot*, which is reliable under the slot's lock and a hint without it.
        """
        return self.memory[STATES + slot]

    def states(self, first: int, behind: int) -> bytes:
        """
        Return the states of a range of slots, one byte each; a hint for slots that are not locked.

        :param first: the number of the first slot, int.
        :param behind: the number after the last slot, int.
        """
        return self.memory[STATES + first : STATES + behind]

    def pid(self, slot: int) -> int:
        """Return the backend's pid of a slot in state HELD, 0 if it is not known."""
        return self.cells[PIDS + slot] if self.state(slot) == HELD else 0

    def write(self, slot: int, state: int, pid: int = 0) -> None:
        """
        Set the state of *slot*, whose lock this process holds.

        :param slot: the number of the slot, int.
        :param state: FREE, CONNECTING or HELD.
        :param pid: the backend's process id, int; 0 if unknown. Default 0.
        :raises RuntimeError: as :meth:`require_open`.
        """
        self.require_open()
        # The pid first: it is read in state HELD only, so a process that is killed between the two
        # stores leaves no state HELD with an old pid.
        self.cells[PIDS + slot] = pid
        self.memory[STATES + slot] = state

    def find_free(self, first: int, behind: int) -> int:
        """
        Return the first slot of a range whose state is FREE, -1 if there is none. The state is a
        hint.

        :param first: the number of the first slot, int.
        :param behind: the number after the last slot, int.
        """
        found = self.memory.find(b"\0", STATES + first, STATES + behind)
        return found - STATES if found >= 0 else -1

    def is_held_by_others(self, behind: int) -> bool:
        """Return whether another process holds a slot before *behind*."""
        return self._locked_until(0, behind) > 0

    def _locked_until(self, slot: int, count: int = 1) -> int:
        """
        Return the number after another process's lock within *count* slots from *slot* on, else
        *slot*.
        """
        found = other_lock(self.locks.fileno(), STATES + slot, count)
        if found is None:
            return slot
        start, length = found
        # Length 0 is a lock up to the end of the file: of the whole, by a repair.
        return int(start + length - STATES) if length else SLOTS

    def _try(self) -> str | None:
        """Open the file; return None, or the problem if a further attempt may succeed."""
        self.locks = open_file(self.path, SIZE)
        try:
            trouble = self._lock_row()
        except BaseException:
            self.locks.close()
            raise
        if trouble is not None:
            self.locks.close()
        return trouble

    def _lock_row(self) -> str | None:
        """Lock a free process row and map the file; return None, or a temporary problem."""
        fd = self.locks.fileno()
        try:
            # The row's lock comes before the first look at the content: it keeps others from
            # repairing the file meanwhile.
            free = (row for row in range(ROWS) if lock(fd, ROW_LOCKS + row))
            self.row = next(free, -1)
        except OSError as error:
            raise refused(self.path, f"it cannot be locked ({error.strerror})") from error
        if self.row < 0:
            return f"{ROWS} processes use it already"
        if _is_sound(fd):
            return self._map()
        # A damaged file is rebuilt in place, under a lock on the whole file: no other process has a
        # row then, and none can lock one. Its own row is unlocked first, so that of two processes
        # that both found the damage one can get the whole.
        unlock(fd, ROW_LOCKS + self.row)
        if lock(fd, 0, 0):
            # Another process may have repaired it between the two locks.
            if not _is_sound(fd):
                fill(self.path, fd, SIZE)
            unlock(fd, 0, 0)
            return self._lock_row()
        return "it is damaged, or of another version of greenline, and in use"

    def _map(self) -> str | None:
        # A mapping keeps its description open, and with it the locks, also in a forked child. So
        # the memory is mapped from another description than the one of the locks.
        with open_file(self.path, SIZE) as other:
            self._status = os.fstat(other.fileno())
            if not os.path.samestat(self._status, os.fstat(self.locks.fileno())):
                return "it was replaced in this moment"
            self.memory = mmap.mmap(other.fileno(), SIZE)
        cells = memoryview(self.memory)[:STATES]
        self.cells, self.times = cells.cast("q"), cells.cast("d")
        return None


def _is_sound(fd: int) -> bool:
    return os.fstat(fd).st_size == SIZE and os.pread(fd, len(HEADER), 0) == HEADER


def lock(fd: int, start: int, length: int = 1, *, is_shared: bool = False) -> bool:
    """
    Lock *length* bytes; return whether no other open file holds a lock on any of them.

    :param fd: the descriptor of the open file, int.
    :param start: the offset of the first byte, int.
    :param length: int, 0 for all. Default 1.
    :param is_shared: whether others may share the lock, bool. Default False.
    """
    kind = fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, RANGE.pack(kind, os.SEEK_SET, start, length, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def other_lock(fd: int, start: int, length: int = 1) -> tuple[int, int] | None:
    """Return offset and length of a lock that another open file holds on these bytes, or None."""
    asked = RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind, _, its, extent, _ = RANGE.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (its, extent)


def unlock(fd: int, start: int, length: int = 1) -> None:
    """Release what :func:`lock` has locked."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, RANGE.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0))


def _release() -> None:
    """Close every file in a forked child, which shares the descriptions of its parent."""
    # Else the parent's slots would stay locked after its death, as long as the child lives.
    for file in list(_files):
        file.close()


os.register_at_fork(after_in_child=_release)
