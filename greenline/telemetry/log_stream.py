"""A text stream that never blocks the hub, for handlers of ``logging`` and as ``sys.stderr``."""

from collections.abc import Iterable
from typing import Any, TextIO

from gevent.monkey import get_original

from greenline.telemetry.log_writer import LineWriter


class LineStream:
    """
    Replace a text stream: same attributes, but writes go to a LineWriter.

    :param stream: the stream to replace.
    :param writer: its thread waits for the reader of the stream, instead of the hub.
    """

    def __init__(self, stream: TextIO, writer: LineWriter) -> None:
        self._stream = stream
        self._writer = writer
        # Native threads of the application write, too, and a signal handler in the middle of a
        # write: hence a native lock, and a reentrant one.
        self._lock = get_original("_thread", "RLock")()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        # In a forked child and at the end of the process there is no writer thread.
        if self._writer.has_ended():
            return self._stream.write(text)
        with self._lock:
            self._writer.write(text.encode(self._stream.encoding, "backslashreplace"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream if the writer has ended; else do not wait for it."""
        if self._writer.has_ended():
            self._stream.flush()
