"""Measure for how long the hub has nothing to do: it waits for events, and no greenlet can run."""

from time import monotonic
from typing import Any

import gevent


class IdleTime:
    """The time that the hub of this thread is idle; it is measured between start and stop."""

    def __init__(self) -> None:
        loop: Any = gevent.get_hub().loop
        # libev calls a prepare watcher right before it waits for events, and a check watcher right
        # after. The priorities make these the last and the first of all.
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
        """Measure no longer; it costs half a microsecond in each round of the loop."""
        for watcher in self._watchers:
            watcher.stop()

    def take_share(self) -> float:
        """Return the idle part of the time since the last call, from 0 to 1."""
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
