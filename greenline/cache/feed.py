"""
Invalidations that the processes of a host share, in a ring in shared memory.

One process reads what the database announces and writes them
(:mod:`greenline.postgres.announcements`). All processes, that one too, read them at each look into
a cache, which costs a comparison as long as there is nothing new: no process has to be woken.
"""

import fcntl
import os
import struct
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Protocol
from zlib import crc32

from greenline.cache.arguments import check_seconds
from greenline.slots.location import open_mapped, path

# Cells of eight bytes behind the header: how many entries were ever written; when the leader last
# confirmed them, seconds of CLOCK_MONOTONIC, which the processes of a host share. 0: never,
# negative: since then no process reads what is announced.
WRITTEN, CONFIRMED = 2, 3
FIRST = 64  # the offset of the entries
ENTRIES, ENTRY_BYTES = 2_048, 128
HEAD = struct.Struct("=qIH")  # of an entry: its number, the checksum and the length of its tag
MAX_TAG_BYTES = ENTRY_BYTES - HEAD.size
SIZE = FIRST + ENTRIES * ENTRY_BYTES
EVERYTHING = b""
# For a value while no process reads; not for longer, because it costs loads.
INTERRUPTED_STALE_S, MAX_INTERRUPTED_S = 0.05, 10.0

_feeds: "weakref.WeakSet[Feed]" = weakref.WeakSet()


class Invalidated(Protocol):
    """A cache that reads a feed."""

    def invalidate(self, key: str | None = None, *, tag: str | None = None) -> None:
        """Forget the value of *key* and the values with *tag*."""

    def clear(self) -> None:
        """Forget all values."""


class Feed:
    """
    The invalidations of one database, as the processes of a host see them.

    :param key: of the database, the same in all processes, str.
    :param max_stale_s: seconds for which a value may be returned without a confirmation, float;
        they begin with its load. Default 2.
    :param folder: of the file, Path. Default: shared memory.
    :raises ConfigError: the file cannot be used; the text says why.
    :raises ValueError: *max_stale_s* is out of its range.
    """

    def __init__(
        self,
        key: str,
        max_stale_s: float = 2.0,
        folder: Path | None = None,
    ) -> None:
        check_seconds("max_stale_s", max_stale_s)
        self.max_stale_s = max_stale_s
        self._path = path(f"cache invalidations of {key}", folder)
        self._file, self._memory = open_mapped(self._path, SIZE)
        self._cells = memoryview(self._memory).cast("q")
        self._times = memoryview(self._memory).cast("d")
        self._lock = threading.Lock()  # of those that write
        self._read = self._cells[WRITTEN]
        self._caches: weakref.WeakSet[Invalidated] = weakref.WeakSet()
        _feeds.add(self)

    def __repr__(self) -> str:
        return f"<Feed {self._path} written={self._cells[WRITTEN]}>"

    def attach(self, cache: Invalidated) -> None:
        """Let *cache* be invalidated by :meth:`pull`."""
        self._caches.add(cache)

    def lead(self) -> bool:
        """
        Return whether this process is the leader, which writes; it is until it ends or resigns.
        """
        if self._file.closed:
            return False
        try:
            # Of the open file: the kernel releases it however the process ends.
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.interrupt()  # the last leader may have been killed
        return True

    def resign(self) -> None:
        """Let another process lead."""
        if not self._file.closed:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)

    def publish(self, tags: Iterable[str]) -> None:
        """Write invalidations of *tags*; a tag that is too long invalidates everything."""
        with self._lock:
            for tag in tags:
                text = tag.encode()
                self._write(text if 0 < len(text) <= MAX_TAG_BYTES else EVERYTHING)

    def publish_everything(self) -> None:
        """Write that everything is invalid: announcements may have been lost."""
        with self._lock:
            self._write(EVERYTHING)

    def interrupt(self) -> None:
        """Note that from now on nothing is read, unless that is so already or was never read."""
        if self._times[CONFIRMED] > 0:
            self._note(-monotonic())

    def resume(self) -> None:
        """Note that nothing is confirmed so far, or ever: a value is used for ``max_stale_s``."""
        self._note(0.0)

    def confirm(self, asked_s: float) -> None:
        """
        Note that all that was committed before *asked_s* is written.

        :param asked_s: monotonic seconds, float.
        """
        self._note(asked_s)

    def _note(self, confirmed_s: float) -> None:
        if not self._file.closed:
            self._times[CONFIRMED] = confirmed_s

    def pull(self) -> float:
        """
        Invalidate in the caches of this process what was written since the last call.

        :returns: what was committed before is invalidated: monotonic seconds, float; 0: nothing is
            known; negative: since then nothing is read.
        """
        # Read first: what is confirmed afterwards may rest on what is not read below.
        confirmed_s = float(self._times[CONFIRMED])
        written = self._cells[WRITTEN]
        if written == self._read:
            return confirmed_s
        tags = self._tags(written)
        for cache in list(self._caches):
            if tags is None:
                cache.clear()
            else:
                for tag in tags:
                    cache.invalidate(tag, tag=tag)  # it may be the key of a value
        # Last: another thread that sees this may rely on it.
        self._read = written
        return confirmed_s

    def is_current(self, begun_s: float, now_s: float, confirmed_s: float) -> bool:
        """
        Return whether a value that was not invalidated may be used.

        :param begun_s: when its load began, monotonic seconds, float.
        :param now_s: the present time, float.
        :param confirmed_s: as :meth:`pull` has returned it.
        """
        if confirmed_s < 0 <= now_s + confirmed_s < MAX_INTERRUPTED_S:
            return now_s - begun_s < min(self.max_stale_s, INTERRUPTED_STALE_S)
        if confirmed_s > now_s:  # of an earlier boot
            confirmed_s = 0.0
        return now_s - max(begun_s, confirmed_s) < self.max_stale_s

    def close(self) -> None:
        """Let another process lead; this one writes nothing any more."""
        self._file.close()

    def _write(self, text: bytes) -> None:
        if self._file.closed:  # in a forked child, for instance
            return
        number = self._cells[WRITTEN]
        start = FIRST + number % ENTRIES * ENTRY_BYTES
        head = HEAD.pack(number, crc32(text, number), len(text))
        self._memory[start : start + HEAD.size + len(text)] = head + text
        # Last: a reader looks for no entry beyond it.
        self._cells[WRITTEN] = number + 1

    def _tags(self, written: int) -> list[str] | None:
        """Return the tags from the last one that was read on; None: everything is invalid."""
        # Half of the ring is room for those that are written meanwhile.
        if not 0 <= written - self._read <= ENTRIES // 2:
            return None
        tags = []
        for number in range(self._read, written):
            start = FIRST + number % ENTRIES * ENTRY_BYTES
            found, checksum, length = HEAD.unpack_from(self._memory, start)
            text = self._memory[start + HEAD.size : start + HEAD.size + min(length, MAX_TAG_BYTES)]
            # Overwritten meanwhile, or, by a processor that reorders stores, not yet complete.
            if (found, checksum) != (number, crc32(text, number)) or text == EVERYTHING:
                return None
            tags.append(text.decode())
        return tags


def _forget() -> None:
    # The lock belongs to the open file, which a child has in common with its parent: a child that
    # lives longer would keep others from leading.
    for feed in list(_feeds):
        feed.close()


os.register_at_fork(after_in_child=_forget)
