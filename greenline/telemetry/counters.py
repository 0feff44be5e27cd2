"""
Count events of all workers of an arbiter in shared memory.

Each worker locks one row of the memory and continues from the counts in it, so counts survive a
worker and there are at most as many rows as workers at once. Counts and histograms are summed over
all rows; values (gauges) over the rows of running workers.

prometheus_client's multiprocess mode takes 1.3 microseconds for a count, leaves files behind with
each worker that is replaced, and is set by a variable that the application may use itself.
"""

import fcntl
import logging
import mmap
import os
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from greenline.telemetry.histograms import BUCKETS, counts_of
from greenline.telemetry.shared_memory import (
    COUNTS_ROW_BYTES,
    HISTOGRAMS_ROW_BYTES,
    HISTOGRAMS_START,
    ROWS,
    SIZE_BYTES,
)

SPARE_ENTRIES = 64  # entries reserved for keys with ``other``
ENTRY_BYTES = 256
ENTRIES = COUNTS_ROW_BYTES // ENTRY_BYTES
KIND = 8  # offset of an entry's kind, behind its number; 0: no entry here yet
KEY_BYTES = ENTRY_BYTES - KIND - 1
COUNT, VALUE = ord("c"), ord("v")
OTHER = "other"
OF_ONE = "worker"  # the name of values that are not summed
OF_HOST = {"capacity", "held_by_all", "free", "wanting"}  # of slots: each worker has the same
CACHE = "cache "  # the name of a cache's part begins with it; the cache's name follows
SLOTS = "slots "  # the name of a host's slot table begins with it; the pool's name follows
# A histogram: a key as in an entry, the sum of the durations, float seconds, and the count of each
# bucket.
HISTOGRAM_BYTES = 2048
HISTOGRAMS, SPARE_HISTOGRAMS = HISTOGRAMS_ROW_BYTES // HISTOGRAM_BYTES, 16
RANGE = struct.Struct("hhqqi4x")  # Linux's struct flock: type, whence, start, len, pid
SUM, FIRST_BUCKET = ENTRY_BYTES // 8, ENTRY_BYTES // 8 + 1  # cells

log = logging.getLogger(__name__)

Key = tuple[str | int, ...]


class Histogram(NamedTuple):
    """
    Hold the counts of a histogram.

    :param counts: by bucket, int.
    :param sum_s: of the durations, float seconds.
    """

    counts: list[int]
    sum_s: float

    def __add__(self, other: Any) -> "Histogram":
        counts = [one + another for one, another in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, self.sum_s + other.sum_s)


Stats = Callable[[], Mapping[str, int]]


class Parts(list[Stats]):
    """The functions of all parts with one name; a call adds up what they return."""

    def __call__(self) -> Mapping[str, int]:
        sums: Counter[str] = Counter()
        for stats in self:
            sums.update(stats())
        return sums


# Functions that return the statistics of this worker's parts, such as a pool, by the part's name.
gauges: dict[str, Parts] = {}
# Functions that return how much this worker's counts of a part have grown since their last call.
growths: dict[str, Parts] = {}


class Reader:
    """
    Read all rows of the shared memory.

    :param fd: descriptor of the memory, int.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(fd, SIZE_BYTES)
        self._cells = memoryview(self._memory).cast("q")
        self._seconds = memoryview(self._memory).cast("d")  # the same cells
        self.row = -1  # of a worker: its own

    def totals(self) -> dict[Key, int]:
        """Return the sums over all workers; for counts, also over those that have ended."""
        return self._sums(COUNT, VALUE)

    def values(self) -> dict[Key, int]:
        """Return the values, summed over all workers."""
        return self._sums(VALUE)

    def _sums(self, *kinds: int) -> dict[Key, int]:
        sums: dict[Key, int] = {}
        for row in range(ROWS):
            is_held: bool | None = None
            cell = None
            for cell, kind, key in self._entries(row):
                # A system call, so only for a row with values, and once.
                if kind == VALUE and is_held is None:
                    is_held = self._is_held(row)
                is_counted = kind == COUNT or (is_held and key[0] != OF_ONE)
                if kind in kinds and is_counted:
                    number, before = self._cells[cell], sums.get(key, 0)
                    is_of_host = key[-1] in OF_HOST and str(key[0]).startswith(SLOTS)
                    sums[key] = max(before, number) if is_of_host else before + number
            if cell is None:
                break  # rows are taken in order, so the following ones are empty, too
        return sums

    def value(self, key: Key) -> int:
        """Return the value of *key*, summed over all workers."""
        # Compares the encoded key in place: totals() would decode every entry.
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

    def histograms(self) -> dict[Key, Histogram]:
        """Return the sums over all workers, also over those that have ended."""
        found: dict[Key, Histogram] = {}
        for row in range(ROWS):
            if not self._memory[row * COUNTS_ROW_BYTES + KIND]:
                break  # as in totals()
            for cell, key in self._histograms(row):
                first = cell + FIRST_BUCKET
                counts = self._cells[first : first + BUCKETS].tolist()
                here = Histogram(counts, self._seconds[cell + SUM])
                found[key] = here if key not in found else found[key] + here
        return found

    def running(self) -> dict[int, dict[Key, int]]:
        """Return the values of each running worker, by the number of its row."""
        found = {}
        for row in range(ROWS):
            entries = self._entries(row)
            if not entries:
                break  # as in totals()
            if self._is_held(row):
                found[row] = {
                    key: self._cells[cell] for cell, kind, key in entries if kind == VALUE
                }
        return found

    def _is_held(self, row: int) -> bool:
        # A process does not conflict with its own record locks: unlocking would lose this one.
        if row == self.row:
            return True
        if sys.platform == "linux":
            # Asked, not locked: a worker that starts in this moment would take another row, and the
            # one before it would stay empty.
            asked = RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, row, 1, 0)
            kind, *_ = RANGE.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
            return bool(kind != fcntl.F_UNLCK)
        if self._lock(row):
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, row)
            return False
        return True

    def _lock(self, row: int) -> bool:
        """Lock *row*; return False if another process holds it."""
        # A record lock, not one of the open file description as in slots/file.py: a child that the
        # worker forks has the descriptor, too, and would keep the row. The byte's offset is only a
        # number for the kernel, unrelated to the row's contents.
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
        except OSError:
            return False
        return True

    def _starts(self, row: int) -> Iterator[tuple[int, int]]:
        """Yield the offset and the kind of each entry of *row*."""
        for start in range(row * COUNTS_ROW_BYTES, (row + 1) * COUNTS_ROW_BYTES, ENTRY_BYTES):
            kind = self._memory[start + KIND]
            if not kind:
                return
            yield start, kind

    def _entries(self, row: int) -> list[tuple[int, int, Key]]:
        """Return the cell, kind and key of each entry of *row*."""
        found = []
        for start, kind in self._starts(row):
            text: Any = self._memory[start + KIND + 1 : start + ENTRY_BYTES].rstrip(b"\0")
            found.append((start // 8, kind, tuple(msgspec.json.decode(text))))
        return found

    def _histograms(self, row: int) -> list[tuple[int, Key]]:
        """Return the first cell and the key of each histogram of *row*."""
        found = []
        first = HISTOGRAMS_START + row * HISTOGRAMS_ROW_BYTES
        for start in range(first, first + HISTOGRAMS_ROW_BYTES, HISTOGRAM_BYTES):
            if not self._memory[start + KIND]:
                break
            text: Any = self._memory[start + KIND + 1 : start + ENTRY_BYTES].rstrip(b"\0")
            found.append((start // 8, tuple(msgspec.json.decode(text))))
        return found


class Counters(Reader):
    """
    Write this worker's row of the shared memory, and read all rows.

    :param fd: descriptor of the memory, int.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.row = self._take_row()
        # The highest values of all workers, including those that have ended. Read before the values
        # of this row are cleared below.
        self.inherited = self._highest_values()
        self._cell_of: dict[Key, int] = {}
        self._used = 0
        for cell, kind, key in self._entries(self.row):
            self._cell_of[key] = cell
            self._used += 1
            if kind == VALUE:
                self._cells[cell] = 0
        if not self._used:  # no row that was taken is empty: totals() relies on it
            self.count(("workers",), 0)
        self._histogram_of = {key: cell for cell, key in self._histograms(self.row)}
        self._noted: dict[int, list[float]] = {}  # seconds, by the histogram's cell

    def __repr__(self) -> str:
        return f"<Counters row={self.row} entries={self._used}>"

    def count(self, key: Key, by: int = 1) -> None:
        """
        Add to a count.

        :param key: a name and labels, tuple, as in ``("requests", route, method, status)``.
        :param by: int, default 1.
        """
        # Only this worker writes the row, in one store of eight bytes: no lock is needed, and a
        # kill leaves no half-written number.
        try:
            self._cells[self._cell_of[key]] += by
        except KeyError:
            self._cells[self._new(key, COUNT)] += by

    def counter(self, key: Key) -> Callable[[], None]:
        """Return a function that adds 1 to the count of *key*, and looks nothing up."""
        cells, cell = self._cells, self._cell_of.get(key)
        if cell is None:
            cell = self._new(key, COUNT)

        def count() -> None:
            cells[cell] += 1

        return count

    def observer(self, key: Key) -> Callable[[float], None]:
        """
        Return a function that notes a duration for a histogram; :meth:`flush` adds it.

        :param key: a name and labels, tuple, as in ``("part", route, "queued")``.
        """
        cell = self._histogram_of.get(key) or self._new_histogram(key)
        # Several keys of a full row share a histogram.
        return self._noted.setdefault(cell, []).append

    def flush(self) -> None:
        """Add the durations that were noted to their histograms."""
        # All at once: to find the bucket of each by itself costs a multiple.
        for cell, noted in self._noted.items():
            if noted:
                first = cell + FIRST_BUCKET
                for bucket, count in counts_of(noted).items():
                    self._cells[first + bucket] += count
                self._seconds[cell + SUM] += sum(noted)
                noted.clear()

    def set(self, key: Key, value: int) -> None:
        """
        Set a value of this worker.

        :param key: a name and labels, tuple, as in ``("pool", "postgres", "active")``.
        :param value: int.
        """
        try:
            self._cells[self._cell_of[key]] = value
        except KeyError:
            self._cells[self._new(key, VALUE)] = value

    def read_gauges(self) -> None:
        """Set the values of all ``gauges``; add all ``growths`` to their counts, and durations."""
        self.flush()
        for write, parts in ((self.set, gauges), (self.count, growths)):
            for name, stats in parts.items():
                try:
                    numbers = stats()
                except Exception:  # must not end the worker's main loop
                    log.exception("the gauge %s failed", name)
                    continue
                for what, value in numbers.items():
                    write((name, what), value)

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
        # The kernel releases the lock when the process ends, in any way.
        for row in range(ROWS):
            if self._lock(row):
                return row
        raise RuntimeError(f"more than {ROWS} workers count at once")

    def _new(self, key: Key, kind: int) -> int:
        """Add an entry for *key* and return its cell."""
        # In a full row its keys share entries, such as ("requests", "other", "GET", 200).
        wider = (key[0], OTHER, *key[2:])
        for key, spare in ((key, SPARE_ENTRIES), (wider, 1), ((OTHER,), 0)):  # noqa: B020
            if key in self._cell_of:
                return self._cell_of[key]
            text = msgspec.json.encode(key)
            if self._used + spare < ENTRIES and len(text) <= KEY_BYTES:
                break
        start = self.row * COUNTS_ROW_BYTES + self._used * ENTRY_BYTES
        self._write_key(start, text, kind)
        self._used += 1
        self._cell_of[key] = start // 8
        return start // 8

    def _new_histogram(self, key: Key) -> int:
        """Add a histogram for *key* and return its cell."""
        # As in _new().
        for key in (key, (key[0], OTHER, *key[2:]), (OTHER,)):  # noqa: B020
            if key in self._histogram_of:
                return self._histogram_of[key]
            text = msgspec.json.encode(key)
            spare = 0 if OTHER in key else SPARE_HISTOGRAMS
            if len(self._histogram_of) + spare < HISTOGRAMS and len(text) <= KEY_BYTES:
                break
        start = HISTOGRAMS_START + self.row * HISTOGRAMS_ROW_BYTES
        start += len(self._histogram_of) * HISTOGRAM_BYTES
        self._write_key(start, text, COUNT)
        self._histogram_of[key] = start // 8
        return start // 8

    def _write_key(self, start: int, text: bytes, kind: int) -> None:
        self._memory[start + KIND + 1 : start + ENTRY_BYTES] = text.ljust(KEY_BYTES, b"\0")
        self._memory[start + KIND] = kind  # last: it makes the entry valid for the other processes


_own: Counters | None = None


def join(fd: int) -> Counters:
    """Return this worker's Counters on the memory behind *fd*."""
    global _own
    _own = Counters(fd)
    return _own


def totals() -> dict[Key, int]:
    """Return the sums over all workers of this arbiter; an empty dict outside of a worker."""
    return {} if _own is None else _own.totals()


def _forget() -> None:
    global _own
    _own = None


# The row belongs to the worker: a child that it forks would write to it as well, when it closes
# the pools that it has inherited, for instance.
os.register_at_fork(after_in_child=_forget)


def add(name: str, stats: Stats, growth: Stats = dict) -> None:
    """
    Add a part to ``gauges`` and ``growths``, once; numbers of parts with one name are added up.

    :param name: the part's name, str.
    :param stats: returns its values.
    :param growth: returns how much its counts have grown since the last call. Default: no counts.
    """
    parts = gauges.setdefault(name, Parts())
    if stats in parts:
        return
    parts.append(stats)
    growths.setdefault(name, Parts()).append(growth)


def remove(name: str, stats: Stats) -> None:
    """
    Remove a part that was added, after a last look at all parts; no effect if it was removed.

    :param name: the part's name, str.
    :param stats: its function in ``gauges``.
    """
    parts = gauges.get(name, Parts())
    if stats not in parts:
        return
    if _own is not None:
        _own.read_gauges()
    index = parts.index(stats)
    del parts[index], growths[name][index]
    if not parts:
        del gauges[name], growths[name]


def growth_of(totals: Callable[[], dict[str, int]]) -> Callable[[], dict[str, int]]:
    """
    Return a function that returns how much each count has grown since its last call.

    :param totals: returns the counts of a part, which begin at 0.
    """
    last = dict.fromkeys(totals(), 0)

    def read() -> dict[str, int]:
        nonlocal last
        before, last = last, totals()
        return {name: value - before[name] for name, value in last.items()}

    return read


def set_value(key: Key, value: int) -> None:
    """
    Set a value of this worker; without effect outside of a worker.

    :param key: a name and labels, tuple.
    :param value: int.
    """
    if _own is not None:
        _own.set(key, value)


def value(key: Key) -> int:
    """Return the value of *key*, summed over all workers of this arbiter; 0 outside of a worker."""
    return 0 if _own is None else _own.value(key)
