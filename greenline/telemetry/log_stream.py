"""
A stream of text that never waits for whoever reads it: for ``logging``, and as ``sys.stderr``.

1. What is written goes to a LineWriter, whose thread waits in place of the hub.
2. Where there is no such thread, in a forked child and at the very end of the process, it goes
   where it went before.
"""

from collections.abc import Iterable
from typing import Any, TextIO

from gevent.monkey import get_original

from greenline.telemetry.log_writer import LineWriter


class LineStream:
    """Stands for *stream*, with all that it has, and writes to *writer*."""

    def __init__(self, stream: TextIO, writer: LineWriter) -> None:
        self._stream = stream
        self._writer = writer
        # A thread of the application may log, and a signal's handler in the middle of a line.
        self._lock = get_original("_thread", "RLock")()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if self._writer.has_ended():
            return self._stream.write(text)
        with self._lock:
            self._writer.write(text.encode(self._stream.encoding, "backslashreplace"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Leave that to the writer, unless it has ended."""
        if self._writer.has_ended():
            self._stream.flush()
