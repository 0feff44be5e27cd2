"""
The file of a slot table: what is in it, its locks, and whether its content can be trusted.

1. Who uses it holds a seat, and takes it before looking at the content. What is damaged is made
   anew in place by who has a lock on the whole: then nobody uses it, and nobody can begin to.
2. The locks are those of an open file description (``F_OFD_SETLK``): the kernel gives them back
   when the last descriptor of it is closed, however its process ends, and no pid says who holds
   them. A fork shares the description, so a forked child closes its copy at once; and a mapping
   would keep it open, so the memory is mapped from another one.
3. Each number is one store of eight bytes, each state one byte, and only the holder of a slot's or
   a seat's lock writes what belongs to it, hints excepted.
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

SLOTS, SEATS = 4096, 256
FREE, CONNECTING, HELD = range(3)  # states of a slot

# The cells of eight bytes, by number: the header's, one a seat each, then the pids of the slots.
WANTED, SEATS_USED = 2, 3
SPARE, SPARE_CELLS = 8, 8
WANTS_UNTIL = SPARE + SPARE_CELLS
HOLDS = WANTS_UNTIL + SEATS
PROMISED_UNTIL = HOLDS + SEATS
PIDS = PROMISED_UNTIL + SEATS
CELLS = PIDS + SLOTS
# Then a byte a slot: its state, and its lock. A seat's byte is locked only, so it need not exist.
STATES = 8 * CELLS
SIZE = STATES + SLOTS
SEAT_LOCKS = SIZE

LOCK_RETRY_S, LOCK_TIMEOUT_S = 0.01, 1.0
RANGE = struct.Struct("hhqqi4x")  # struct flock: kind, whence, start, length, pid

_files: "WeakSet[SlotFile]" = WeakSet()


class SlotFile:
    """
    The slot table at *path*, made when there is none, and a seat in it.

    Waits up to *patience_s* for one who repairs it.

    Raises:
        ConfigError: names the file, and what is wrong with it.
    """

    def __init__(self, path: Path, patience_s: float = LOCK_TIMEOUT_S) -> None:
        self.path = path
        until = time.monotonic() + patience_s
        while (trouble := self._try()) is not None:
            if time.monotonic() >= until:
                raise refused(path, trouble)
            time.sleep(LOCK_RETRY_S)
        self.cells[HOLDS + self.seat] = 0
        self.times[WANTS_UNTIL + self.seat] = self.times[PROMISED_UNTIL + self.seat] = 0.0
        _files.add(self)

    def __repr__(self) -> str:
        return f"<SlotFile {self.path} seat={self.seat}>"

    def close(self) -> None:
        """Let all locks go; close it twice and nothing happens."""
        self.locks.close()

    def remove_unused(self) -> None:
        """Remove the file when nobody else uses it and nothing is held; before ``close()``."""
        if self.locks.closed or any(self.states(0, SLOTS)):
            return
        # Who opens it in this moment finds it replaced, and opens the next one.
        if _lock(self.locks.fileno(), 0, 0) and self.is_in_place():
            with suppress(OSError):
                os.unlink(self.path)

    def require_open(self) -> None:
        """
        Prove that this process opened the file.

        Raises:
            RuntimeError: it is closed, here or because this process was forked.
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
        """Lock *slot* and return whether nobody else had: this description may have, already."""
        return _lock(self.locks.fileno(), STATES + slot)

    def unlock(self, slot: int) -> None:
        """Let the lock of *slot* go."""
        _unlock(self.locks.fileno(), STATES + slot)

    def unlocked(self, first: int, mine: Container[int], most: int) -> Iterator[tuple[int, bool]]:
        """
        Ask, from *first* on, about the slots that are not free and not *mine*, *most* times.

        Yield where to go on after each, and whether the one before that was not locked and is now.
        """
        states = self.states(0, SLOTS).rstrip(b"\0")
        number = first
        while number < len(states) and most:
            if states[number] == FREE or number in mine:
                number += 1
                continue
            most -= 1
            behind = self._locked_until(number)
            is_unlocked = behind == number and self.lock(number)
            number = max(behind, number + 1)
            yield number, is_unlocked
        yield number if number < len(states) else 0, False

    def state(self, slot: int) -> int:
        """Return the state of *slot*: true for whoever has locked it, else a hint."""
        return self.memory[STATES + slot]

    def states(self, first: int, behind: int) -> bytes:
        """Return the states of the slots from *first* on."""
        return self.memory[STATES + first : STATES + behind]

    def pid(self, slot: int) -> int:
        """Return the backend's pid of a slot in state HELD, 0 when it is not known."""
        return self.cells[PIDS + slot] if self.state(slot) == HELD else 0

    def write(self, slot: int, state: int, pid: int = 0) -> None:
        """Say what became of *slot*, which is locked; pid first, it counts with its state only."""
        self.require_open()
        self.cells[PIDS + slot] = pid
        self.memory[STATES + slot] = state

    def find_free(self, first: int, behind: int) -> int:
        """Return the first slot from *first* on that seems to be free, -1 when none does."""
        found = self.memory.find(b"\0", STATES + first, STATES + behind)
        return found - STATES if found >= 0 else -1

    def is_held_by_others(self, behind: int) -> bool:
        """Return whether another process holds a slot before *behind*."""
        return self._locked_until(0, behind) > 0

    def _locked_until(self, slot: int, count: int = 1) -> int:
        """Return the number behind another's lock on *slot*, or *count* from there, else *slot*."""
        asked = RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, STATES + slot, count, 0)
        answer = fcntl.fcntl(self.locks.fileno(), fcntl.F_OFD_GETLK, asked)
        kind, _, start, length, _ = RANGE.unpack(answer)
        if kind == fcntl.F_UNLCK:
            return slot
        return int(start + length - STATES) if length else SLOTS

    def _try(self) -> str | None:
        """Open it; return what is wrong with it when that may pass."""
        self.locks = open_file(self.path, SIZE)
        try:
            trouble = self._sit_down()
        except BaseException:
            self.locks.close()
            raise
        if trouble is not None:
            self.locks.close()
        return trouble

    def _sit_down(self) -> str | None:
        fd = self.locks.fileno()
        try:
            free = (seat for seat in range(SEATS) if _lock(fd, SEAT_LOCKS + seat))
            self.seat = next(free, -1)
        except OSError as error:
            raise refused(self.path, f"it cannot be locked ({error.strerror})") from error
        if self.seat < 0:
            return f"{SEATS} processes use it already"
        if _is_sound(fd):
            return self._map()
        _unlock(fd, SEAT_LOCKS + self.seat)
        if _lock(fd, 0, 0):
            if not _is_sound(fd):
                fill(self.path, fd, SIZE)
            _unlock(fd, 0, 0)
            return self._sit_down()
        return "it is damaged, or of another version of greenline, and in use"

    def _map(self) -> str | None:
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


def _lock(fd: int, start: int, length: int = 1) -> bool:
    """Lock *length* bytes, 0 for all, and return whether no other description had any of them."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(fd: int, start: int, length: int = 1) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, RANGE.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0))


def _release() -> None:
    """In a forked child: hold nothing for a parent that may die."""
    for file in list(_files):
        file.close()


os.register_at_fork(after_in_child=_release)
