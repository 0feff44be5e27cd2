"""
Write lines to a descriptor that may be slow or stuck, without ever stopping the hub.

1. The hub only appends; a native thread writes. ``O_NONBLOCK`` would not do: it belongs to the
   open file, which the master, the other workers and whoever started them share; and a file on
   a slow disk blocks in spite of it.
2. At most *max_bytes* wait to be written. What comes on top of that is dropped and counted, and
   the next line that is taken is preceded by one that tells how many are missing.
3. Lines stay whole among those of other processes: a pipe takes up to ``PIPE_BUF`` bytes in one
   piece, a file opened for appending takes any number.
"""

import fcntl
import os
import select
import stat
from collections.abc import Callable
from time import monotonic
from typing import Any

from gevent.monkey import get_original

GATHER_S = 0.05  # a write for each line would cost more than the line
FILE_BYTES = 65_536


class LineWriter:
    """
    Lines on their way to *fd*, which is the writer's own from now on.

    *lost* makes the line that tells how many were dropped. Lines are gathered for *gather_s*.
    """

    def __init__(
        self,
        fd: int,
        lost: Callable[[int], bytes],
        *,
        max_bytes: int = 4 * 1024 * 1024,
        gather_s: float = GATHER_S,
    ) -> None:
        self._fd = fd
        self._lost = lost
        self._max_bytes = max_bytes
        self._gather_s = gather_s
        is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        self._piece_bytes = select.PIPE_BUF if is_pipe else FILE_BYTES
        self._lines: Any = get_original("queue", "SimpleQueue")()
        # Each number is changed by one of the two only, the hub or the thread.
        self._taken = self._taken_bytes = self._dropped = self._told = 0
        self._written = self._done_bytes = self._failed = 0
        self._closed = self._ended = False
        get_original("_thread", "start_new_thread")(self._work, ())
        os.register_at_fork(after_in_child=self._forget)

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<LineWriter {stats}>"

    def stats(self) -> dict[str, int]:
        """Return how many lines were written and lost, and the bytes that wait."""
        return {
            "written": self._written,
            "lost": self._dropped + self._failed,
            "waiting_bytes": self._taken_bytes - self._done_bytes,
        }

    def write(self, line: bytes) -> None:
        """Take *line*, which ends with a newline, or drop it; never wait."""
        if self._taken_bytes - self._done_bytes + len(line) > self._max_bytes or self._closed:
            self._dropped += 1
            return
        if self._dropped + self._failed != self._told:
            self._tell()
        self._take(line)

    def has_ended(self) -> bool:
        """Return whether all was written and nothing more is taken; so it is in a forked child."""
        return self._ended

    def reopen(self, path: str | int) -> None:
        """Go on in a new file at *path*: the old one was moved away."""
        fd = open_log(path)
        os.dup2(fd, self._fd, inheritable=False)
        os.close(fd)

    def close(self, timeout_s: float = 1.0) -> bool:
        """
        Write what waits, for *timeout_s* seconds at most; return whether all was written.

        It is for the end of the process: no greenlet runs meanwhile.
        """
        if not self._closed:
            if self._dropped + self._failed != self._told:
                self._tell()
            self._closed = True
            self._lines.put(None)
        until = monotonic() + timeout_s
        while not self._ended and monotonic() < until:
            get_original("time", "sleep")(0.005)
        return self._ended

    def _forget(self) -> None:
        """Run in a child: the thread, and what waits for it, are the parent's."""
        self._closed = self._ended = True

    def _take(self, line: bytes) -> None:
        self._taken_bytes += len(line)
        self._lines.put(line)

    def _tell(self) -> None:
        lost = self._dropped + self._failed
        self._take(self._lost(lost - self._told))
        self._told = lost

    def _work(self) -> None:
        """Run in the thread."""
        sleep, lines = get_original("time", "sleep"), self._lines
        going = True
        while going:
            batch = [lines.get()]
            if not self._closed:
                sleep(self._gather_s)
            while not lines.empty():
                batch.append(lines.get())
            if batch[-1] is None:
                going = False
                batch.pop()
            self._write_all(batch)
        get_original("os", "close")(self._fd)
        self._ended = True

    def _write_all(self, lines: list[bytes]) -> None:
        start = 0
        while start < len(lines):
            end, size = start + 1, len(lines[start])
            while end < len(lines) and size + len(lines[end]) <= self._piece_bytes:
                size += len(lines[end])
                end += 1
            if self._write_piece(b"".join(lines[start:end])):
                self._written += end - start
            else:
                self._failed += end - start
            self._done_bytes += size
            start = end

    def _write_piece(self, piece: bytes) -> bool:
        """Return whether the other end took it; wait for as long as that takes."""
        while piece:
            try:
                piece = piece[os.write(self._fd, piece) :]
            except BlockingIOError:  # somebody else made the open file non-blocking
                poller = get_original("select", "poll")()
                poller.register(self._fd, select.POLLOUT)
                poller.poll()
            except OSError:
                return False
        return True


def open_log(path: str | int) -> int:
    """Return a descriptor for the file at *path*, for standard output (``-``), or another one."""
    if path == "-":
        path = 1
    if isinstance(path, int):
        return fcntl.fcntl(path, fcntl.F_DUPFD_CLOEXEC, 3)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
