"""How fast documents are written: at most so many a second, and slower while the target fails."""

from collections.abc import Callable
from threading import Event, Lock
from time import monotonic


class Throttle:
    """
    The thread that reads waits before each batch; those that write say when none should begin.

    :param max_rate: documents a second, int; None does not limit them.
    :param stopping: once set, there is no waiting.
    :param clock: seconds, monotonic.
    """

    def __init__(
        self, max_rate: int | None, stopping: Event, clock: Callable[[], float] = monotonic
    ) -> None:
        self._max_rate = max_rate
        self._stopping = stopping
        self._clock = clock
        self._lock = Lock()
        self._next = 0.0

    def wait(self, documents: int) -> None:
        """Wait until as many documents may be written."""
        self._stopping.wait(max(self.reserve(documents), 0))

    def reserve(self, documents: int) -> float:
        """Reserve the time of *documents*; return in how many seconds it begins."""
        with self._lock:
            now = self._clock()
            begin = max(self._next, now)
            self._next = begin + (documents / self._max_rate if self._max_rate else 0)
            return begin - now

    def pause(self, pause_s: float) -> None:
        """Let no batch begin for *pause_s* seconds: the target did not take the last one."""
        with self._lock:
            self._next = max(self._next, self._clock() + pause_s)
