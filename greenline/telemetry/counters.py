"""
Count for all workers of one master, in shared memory that outlives each of them.

1. The master makes the memory before the fork; it needs no name, so nothing is left over.
2. It has rows. A worker takes the first one that nobody holds, by a record lock, which the
   kernel gives back with the process, however that dies; it goes on from the counts it finds.
   So nothing is lost or counted twice, and there are no more rows than workers at once.
3. Only its holder writes a row, each count in one store of eight bytes: no lock, nothing to
   repair after a kill.
4. A row has room for ``ENTRIES`` keys. What comes later is counted as ``other``.
5. Counts are summed over all rows; values, which are true only now, over those that are held.

prometheus_client's multiprocess mode would do, too: at 1.3 microseconds a count, with files that
become more with every worker that is replaced, and by a variable that the application may be
using for itself.
"""

import fcntl
import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

ROWS = 256
ENTRIES = 1024
SPARE = 64  # entries that only ``other`` keys get
ENTRY_BYTES = 256
ROW_BYTES = ENTRIES * ENTRY_BYTES
KIND = 8  # where an entry's kind is, behind its number; written last, it makes the entry valid
KEY_BYTES = ENTRY_BYTES - KIND - 1
COUNT, VALUE = ord("c"), ord("v")
OTHER = "other"

log = logging.getLogger(__name__)

Key = tuple[str | int, ...]
Stats = Callable[[], Mapping[str, int]]

# What the application of this worker can tell about itself, by name: its pools, for instance.
gauges: dict[str, Stats] = {}


def share() -> int:
    """Return a descriptor of new shared memory: call it in the master, before the fork."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("greenline-counters")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, ROWS * ROW_BYTES)  # none of it is used before it is written
    return fd


class Counters:
    """This worker's row of the memory behind *fd*, to write; all rows, to read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(fd, ROWS * ROW_BYTES)
        self._cells = memoryview(self._memory).cast("q")
        self._row = self._take_row()
        # The highest values of all workers, ended ones included, read before this row is cleared.
        self.inherited = self._highest_values()
        self._cell_of: dict[Key, int] = {}
        self._used = 0
        for cell, kind, key in self._entries(self._row):
            self._cell_of[key] = cell
            self._used += 1
            if kind == VALUE:
                self._cells[cell] = 0
        if not self._used:
            self.count(("workers",), 0)

    def __repr__(self) -> str:
        return f"<Counters row={self._row} entries={self._used}>"

    def count(self, key: Key, by: int = 1) -> None:
        """Add to the count of *key*: a name and labels, as in ``("requests", route, status)``."""
        try:
            self._cells[self._cell_of[key]] += by
        except KeyError:
            self._cells[self._new(key, COUNT)] += by

    def set(self, key: Key, value: int) -> None:
        """Say what *key* is in this worker now, as in ``("pool", "postgres", "active")``."""
        try:
            self._cells[self._cell_of[key]] = value
        except KeyError:
            self._cells[self._new(key, VALUE)] = value

    def read_gauges(self) -> None:
        """Set what each of ``gauges`` tells now."""
        for name, stats in gauges.items():
            try:
                told = stats()
            except Exception:  # it is the worker's main loop that asks
                log.exception("the gauge %s failed", name)
                continue
            for what, value in told.items():
                self.set((name, what), value)

    def totals(self) -> dict[Key, int]:
        """Return the sums over all workers, those before these included for counts."""
        totals: dict[Key, int] = {}
        for row in range(ROWS):
            is_held: bool | None = None
            cell = None
            for cell, kind, key in self._entries(row):
                if kind == VALUE and is_held is None:
                    is_held = self._is_held(row)
                if kind == COUNT or is_held:
                    totals[key] = totals.get(key, 0) + self._cells[cell]
            if cell is None:
                break  # rows are taken in order, and none is empty once it was taken
        return totals

    def value(self, key: Key) -> int:
        """Return the value of *key*, summed over all workers, without the work of totals()."""
        text = msgspec.json.encode(key) + b"\0"
        total = 0
        for row in range(ROWS):
            start = None
            for start, kind in self._starts(row):
                begin = start + KIND + 1
                if kind == VALUE and self._memory[begin : begin + len(text)] == text:
                    found = self._cells[start // 8]
                    total += found if found and self._is_held(row) else 0
                    break
            if start is None:
                break
        return total

    def _highest_values(self) -> dict[Key, int]:
        highest: dict[Key, int] = {}
        for row in range(ROWS):
            entries = self._entries(row)
            for cell, kind, key in entries:
                if kind == VALUE:
                    highest[key] = max(highest.get(key, 0), self._cells[cell])
            if not entries:
                break
        return highest

    def _take_row(self) -> int:
        for row in range(ROWS):
            if self._lock(row):
                return row
        raise RuntimeError(f"more than {ROWS} workers count at once")

    def _is_held(self, row: int) -> bool:
        if row == self._row:
            return True
        if self._lock(row):
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, row)
            return False
        return True

    def _lock(self, row: int) -> bool:
        """Lock the byte of *row* and return whether nobody else had; byte locks need no bytes."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
        except OSError:
            return False
        return True

    def _new(self, key: Key, kind: int) -> int:
        """Return the cell of a key without one, which may be one that it shares with others."""
        wider = (key[0], OTHER, *key[2:])
        for key, spare in ((key, SPARE), (wider, 1), ((OTHER,), 0)):  # noqa: B020
            if key in self._cell_of:
                return self._cell_of[key]
            text = msgspec.json.encode(key)
            if self._used + spare < ENTRIES and len(text) <= KEY_BYTES:
                break
        start = self._row * ROW_BYTES + self._used * ENTRY_BYTES
        self._memory[start + KIND + 1 : start + ENTRY_BYTES] = text.ljust(KEY_BYTES, b"\0")
        self._memory[start + KIND] = kind
        self._used += 1
        self._cell_of[key] = start // 8
        return start // 8

    def _starts(self, row: int) -> Iterator[tuple[int, int]]:
        """Yield where each entry of *row* starts, and its kind."""
        for start in range(row * ROW_BYTES, (row + 1) * ROW_BYTES, ENTRY_BYTES):
            kind = self._memory[start + KIND]
            if not kind:
                return
            yield start, kind

    def _entries(self, row: int) -> list[tuple[int, int, Key]]:
        """Return cell, kind and key of each entry of *row*."""
        found = []
        for start, kind in self._starts(row):
            text: Any = self._memory[start + KIND + 1 : start + ENTRY_BYTES].rstrip(b"\0")
            found.append((start // 8, kind, tuple(msgspec.json.decode(text))))
        return found


_own: Counters | None = None


def join(fd: int) -> Counters:
    """Take a row of the memory behind *fd* for this worker."""
    global _own
    _own = Counters(fd)
    return _own


def totals() -> dict[Key, int]:
    """Return the sums over all workers of this master; nothing outside of one."""
    return {} if _own is None else _own.totals()


def set_value(key: Key, value: int) -> None:
    """Say what *key* is in this worker now; nothing outside of one."""
    if _own is not None:
        _own.set(key, value)


def value(key: Key) -> int:
    """Return the value of *key*, summed over all workers of this master; 0 outside of one."""
    return 0 if _own is None else _own.value(key)
