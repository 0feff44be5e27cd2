"""
Write lines to a file descriptor from a native thread, so that a slow reader never blocks the hub.

``O_NONBLOCK`` is no alternative: it is a property of the open file, which the arbiter, the other
workers and the process that started them share, and a file on a slow disk blocks in spite of it.
"""

import fcntl
import os
import select
from collections.abc import Callable
from time import monotonic
from typing import Any

from gevent.monkey import get_original

from greenline.telemetry.pieces import piece_bytes

GATHER_S = 0.05  # a write for each line would cost more than the line


class LineWriter:
    """
    A bounded queue of lines, and the thread that writes them.

    :param fd: the descriptor to write to, int; the writer owns it and closes it.
    :param lost: returns a line that reports a number of lost lines.
    :param max_bytes: size of the queue, int, default 4 MiB. Further lines are dropped and counted.
    :param gather_s: seconds to gather lines for one write, float, default 0.05.
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
        self._piece_bytes = piece_bytes(fd)
        self._lines: Any = get_original("queue", "SimpleQueue")()
        # Each number has one writer, so no lock is needed: the hub those of the first line, the
        # thread those of the second.
        self._taken = self._taken_bytes = self._dropped = self._reported = 0
        self._written = self._done_bytes = self._failed = 0
        self._closed = self._ended = False
        get_original("_thread", "start_new_thread")(self._work, ())
        os.register_at_fork(after_in_child=self._forget)

    def __repr__(self) -> str:
        stats = " ".join(f"{name}={value}" for name, value in self.stats().items())
        return f"<LineWriter {stats}>"

    def stats(self) -> dict[str, int]:
        """Return the lines written and lost so far, and the bytes that wait."""
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
        # The report of lost lines stands where they are missing.
        if self._dropped + self._failed != self._reported:
            self._report_lost()
        self._take(line)

    def has_ended(self) -> bool:
        """Return whether all was written and no more is accepted; always so in a forked child."""
        return self._ended

    def reopen(self, path: str | int) -> None:
        """Continue in a new file at *path*, after the old one was moved away."""
        # dup2() replaces the file under the descriptor, while the thread may be writing to it.
        fd = open_log(path)
        os.dup2(fd, self._fd, inheritable=False)
        os.close(fd)

    def close(self, timeout_s: float = 1.0) -> bool:
        """
        Write the lines that wait; call it at the end of the process, because it blocks the hub.

        :param timeout_s: seconds for that, float, default 1.
        :returns: whether all was written.
        """
        if not self._closed:
            if self._dropped + self._failed != self._reported:
                self._report_lost()
            self._closed = True
            self._lines.put(None)
        until = monotonic() + timeout_s
        while not self._ended and monotonic() < until:
            get_original("time", "sleep")(0.005)
        return self._ended

    def _forget(self) -> None:
        # Runs in a forked child. The thread exists only in the parent, which writes the lines that
        # wait.
        self._closed = self._ended = True

    def _take(self, line: bytes) -> None:
        self._taken_bytes += len(line)
        self._lines.put(line)

    def _report_lost(self) -> None:
        lost = self._dropped + self._failed
        self._take(self._lost(lost - self._reported))
        self._reported = lost

    def _work(self) -> None:
        # Runs in the thread. A write for each line would cost more than the line: gather some.
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
        """Write all of *piece*, however long that takes; return whether it succeeded."""
        while piece:
            try:
                piece = piece[os.write(self._fd, piece) :]
            except BlockingIOError:  # another process has made the open file non-blocking
                poller = get_original("select", "poll")()
                poller.register(self._fd, select.POLLOUT)
                poller.poll()
            except OSError:
                return False
        return True


def open_log(path: str | int) -> int:
    """Return a new descriptor for a path, for standard output (``-``), or for a descriptor."""
    if path == "-":
        path = 1
    if isinstance(path, int):
        return fcntl.fcntl(path, fcntl.F_DUPFD_CLOEXEC, 3)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
