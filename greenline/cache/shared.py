"""
Load a key once for all workers of a host.

A worker that loads holds a lock on the key, which the kernel releases however the worker ends. The
others wait for it, and then look for what was loaded in a ring in shared memory. If it has failed,
or its value is too large, the ring says so, and each loads by itself. If nothing is there, because
the worker was killed or its request interrupted, one of them has the lock now and loads, and the
others go on waiting.
"""

import os
import pickle  # nosec B403
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from greenline.cache.flight import is_interruption, patience_s
from greenline.cache.values import Kept
from greenline.slots.file import lock, other_lock, unlock
from greenline.slots.location import open_mapped, path

WRITTEN = 2  # the cell of eight bytes with the number of bytes that were ever written
FIRST = 64  # the offset of the ring
RING_BYTES = 2 << 20
SIZE = FIRST + RING_BYTES
MAX_RECORD_BYTES = RING_BYTES // 4
HEAD = struct.Struct("=qII")  # of a record: the key's number, the checksum and the length
WRITE_LOCK = 0  # the offset that a writer locks; a key has an even one, and the odd one behind it
POLL_S, MAX_POLL_S = 0.001, 0.02
STUCK_S, MAX_STUCK = 60.0, 1_000  # for which, and of how many keys, no load is waited for again


class Loaded(NamedTuple):
    """What another worker has loaded, when its load began, and for how long it is fresh."""

    kept: Kept
    begun_s: float
    ttl_s: float


_all: "weakref.WeakSet[SharedLoads]" = weakref.WeakSet()


class SharedLoads:
    """
    The loads of the caches of a host that have one name.

    :param name: the same in all workers, and in no other application of the user, str.
    :param folder: of the file, Path. Default: shared memory.
    :raises ConfigError: the file cannot be used; the text says why.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        # A release whose ring has another size has another file.
        self._path = path(f"cache loads of {name}, {SIZE}", folder)
        self._file, self._memory = open_mapped(self._path, SIZE)
        self._cells = memoryview(self._memory).cast("q")
        # The locks of a file exclude other processes alone.
        self._mine: set[int] = set()  # the keys that this process loads
        # Until when a key is not waited for, because a caller has waited in vain.
        self._stuck_until_s: dict[int, float] = {}
        self._writing = threading.Lock()
        _all.add(self)

    @contextmanager
    def turn(self, key: str) -> Iterator[Loaded | None]:
        """
        Take the turn to load *key* for the length of the block; where another worker has it, wait.

        :returns: what the other one has loaded; None: load it.
        """
        if self._file.closed:  # in a forked child
            yield None
            return
        fd, number, position = self._file.fileno(), _number(key), self._cells[WRITTEN]
        if number in self._mine:  # a load that was invalidated meanwhile
            yield None
            return
        if lock(fd, number):
            self._stuck_until_s.pop(number, None)
        elif time.monotonic() < self._stuck_until_s.get(number, 0.0):
            yield None
            return
        elif published := self._wait(fd, key, number, position):
            yield published[-1]
            return
        self._mine.add(number)
        try:
            yield None
        except BaseException as error:
            # An interruption says nothing about the load of the next one.
            if not is_interruption(error):
                self.publish(key, None)
            raise
        finally:
            self._mine.discard(number)
            if not self._file.closed:
                unlock(fd, number)

    def publish(self, key: str, loaded: Loaded | None) -> None:
        """
        Give *loaded* to those that wait for *key*; call it in the block of :meth:`turn`.

        :param loaded: None: each of them loads by itself.
        """
        if self._file.closed:
            return
        fd, number = self._file.fileno(), _number(key)
        if other_lock(fd, number + 1) is None:  # no other worker waits
            return
        try:
            text = pickle.dumps((key, loaded), pickle.HIGHEST_PROTOCOL)
        except Exception:
            text = b""
        # The value is good for this worker alone: who reads this loads by itself.
        if HEAD.size + len(text) > MAX_RECORD_BYTES:
            text = b""
        with self._writing:
            while not lock(fd, WRITE_LOCK):  # for microseconds
                time.sleep(POLL_S)
            try:
                written = self._cells[WRITTEN]
                record = HEAD.pack(number, crc32(text), len(text)) + text
                self._write(written, record)
                # Last: a reader looks at nothing beyond it.
                self._cells[WRITTEN] = written + len(record)
            finally:
                unlock(fd, WRITE_LOCK)

    def close(self) -> None:
        """Load without the others from now on."""
        self._file.close()

    def _wait(self, fd: int, key: str, number: int, position: int) -> list[Loaded | None]:
        """
        Wait until the worker that loads has ended its load, or seems to be stuck.

        :returns: as :meth:`_published`; where it is empty, this worker has the lock.
        """
        # Tells that worker that its value is wanted.
        lock(fd, number + 1, is_shared=True)
        try:
            pause_s, until_s = POLL_S, time.monotonic() + patience_s()
            while not lock(fd, number):
                if (left_s := until_s - time.monotonic()) <= 0:
                    if len(self._stuck_until_s) >= MAX_STUCK:
                        self._stuck_until_s.clear()
                    self._stuck_until_s[number] = time.monotonic() + STUCK_S
                    return [None]
                time.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, MAX_POLL_S)
        finally:
            unlock(fd, number + 1)
        published = self._published(key, number, position)
        if number in self._mine:  # this process has the lock for another load
            return published or [None]
        if published:
            unlock(fd, number)
        return published

    def _published(self, key: str, number: int, position: int) -> list[Loaded | None]:
        """Return what was published for *key* since *position*; None: each loads by itself."""
        found: list[Loaded | None] = []
        end = self._cells[WRITTEN]
        if end > position + RING_BYTES // 2:  # more may be overwritten meanwhile
            return [None]
        while position < end:
            its, checksum, length = HEAD.unpack(self._read(position, HEAD.size))
            if its == number and length <= MAX_RECORD_BYTES:
                text = self._read(position + HEAD.size, length)
                # A processor that reorders stores may show what is not yet complete.
                found.append(_loaded(key, text) if crc32(text) == checksum else None)
            position += HEAD.size + length
        return found

    def _write(self, position: int, text: bytes) -> None:
        start = position % RING_BYTES
        first = text[: RING_BYTES - start]
        self._memory[FIRST + start : FIRST + start + len(first)] = first
        self._memory[FIRST : FIRST + len(text) - len(first)] = text[len(first) :]

    def _read(self, position: int, length: int) -> bytes:
        start = FIRST + position % RING_BYTES
        first = self._memory[start : start + length]
        return first + self._memory[FIRST : FIRST + length - len(first)]


def _loaded(key: str, text: bytes) -> Loaded | None:
    """Return what *text* has of *key*; None: nothing, or it is of another release."""
    try:
        named, loaded = pickle.loads(text)  # nosec B301  # noqa: S301 - of this user
    except Exception:
        return None
    return loaded if named == key else None


def _number(key: str) -> int:
    """Return the even offset of the lock of *key*."""
    text = key.encode(errors="surrogatepass")
    return 2 + 2 * int.from_bytes(blake2b(text, digest_size=7).digest())


def _forget() -> None:
    # The locks belong to the open file, which a child has in common with its parent.
    for each in list(_all):
        each.close()


os.register_at_fork(after_in_child=_forget)
