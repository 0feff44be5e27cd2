"""Limit the rate at which documents are written, and pause while the target fails."""

from collections.abc import Callable
from threading import Event, Lock
from time import monotonic


class Throttle:
    """
    Delay batches: the reading thread waits before each, and writing threads request pauses.

    :param max_rate: documents per second, int; None for no limit.
    :param stopping: once set, there is no waiting.
    :param clock: returns monotonic seconds. Default ``time.monotonic``.
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
        """Wait until that many documents may be written."""
        self._stopping.wait(max(self.reserve(documents), 0))

    def reserve(self, documents: int) -> float:
        """Reserve the time for *documents*; return the seconds until it begins."""
        # From now if the last time has passed: an idle time is not made up for.
        with self._lock:
            now = self._clock()
            begin = max(self._next, now)
            self._next = begin + (documents / self._max_rate if self._max_rate else 0)
            return begin - now

    def pause(self, pause_s: float) -> None:
        """Let no batch begin for *pause_s* seconds, after an error of the target."""
        with self._lock:
            self._next = max(self._next, self._clock() + pause_s)
