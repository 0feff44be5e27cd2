"""Measure how long the hub is idle: no greenlet can run, and the loop waits for events."""

from time import monotonic
from typing import Any

import gevent


class IdleTime:
    """Measure the idle time of this thread's hub, between :meth:`start` and :meth:`stop`."""

    def __init__(self) -> None:
        loop: Any = gevent.get_hub().loop
        # libev calls a prepare watcher right before it waits for events, and a check watcher right
        # after. The priorities put this one last and that one first.
        self._watchers: tuple[Any, Any] = (
            loop.prepare(ref=False, priority=loop.MINPRI),
            loop.check(ref=False, priority=loop.MAXPRI),
        )
        self._waits_since_s: float | None = None
        self._taken_s = 0.0
        self._idle_s = 0.0

    def start(self) -> None:
        """Measure from now on."""
        prepare, check = self._watchers
        prepare.start(self._note_wait)
        check.start(self._note_end)
        self._waits_since_s = None
        self._taken_s, self._idle_s = monotonic(), 0.0

    def stop(self) -> None:
        """Stop measuring."""
        # Measuring costs 0.5 us in each round of the loop, so it runs only while it is needed.
        for watcher in self._watchers:
            watcher.stop()

    def take_share(self) -> float:
        """Return the idle share of the time since the last call, from 0 to 1."""
        now = monotonic()
        past_s, idle_s = now - self._taken_s, self._idle_s
        self._taken_s, self._idle_s = now, 0.0
        return min(idle_s / past_s, 1.0) if past_s > 0 else 0.0

    def _note_wait(self) -> None:
        self._waits_since_s = monotonic()

    def _note_end(self) -> None:
        if self._waits_since_s is not None:
            self._idle_s += monotonic() - self._waits_since_s
            self._waits_since_s = None
