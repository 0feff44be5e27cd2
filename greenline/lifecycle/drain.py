"""
Stop a worker in three beats.

1. When the whole service stops it goes on accepting for a moment: readiness has ended, and who
   balances the load needs time to see it. From now on every answer says ``Connection: close``.
2. It accepts no more. An idle connection is closed when the proxy has given it up by itself: one
   that it is about to use would be a 502.
3. Requests in progress may finish until the graceful timeout, less what closing the pools takes.
   Then they are cut, with a line each in the log.
"""

from collections.abc import Callable, Collection
from time import monotonic
from typing import Any, Protocol

import gevent

# The master kills at the graceful timeout: so much of it is left for the end, at most a quarter.
LAST_S = 3.0
CUT_S = 1.0  # for those that are cut, at most half of that
TICK_S = 0.1


class Conversation(Protocol):
    """A client's connection, as far as a stop is concerned with it."""

    def close_if_idle(self) -> None:
        """Close it, unless a request came or is in progress."""

    def cut(self) -> None:
        """End it, whatever it does."""

    def what(self) -> str | None:
        """Return what is in progress, None when nothing is."""


class Guest:
    """A connection that gunicorn serves by itself: it ends when its requests do, or is cut."""

    def __init__(self) -> None:
        self._greenlet = gevent.getcurrent()

    def close_if_idle(self) -> None:
        """Leave it: nobody knows whether it is idle."""

    def cut(self) -> None:
        """End whatever it does."""
        gevent.kill(self._greenlet)

    def what(self) -> str:
        """Return all that is known of it."""
        return "a connection of gunicorn's own"


class Drain:
    """The stop of one worker, which has *graceful_s* seconds; *beat* keeps it alive meanwhile."""

    def __init__(self, graceful_s: float, beat: Callable[[], None]) -> None:
        self._started = monotonic()
        last_s = min(LAST_S, graceful_s / 4)
        self._end = self._started + graceful_s - last_s
        self._cut_s = min(CUT_S, last_s / 2)
        self._beat = beat

    def go_on(self, delay_s: float) -> None:
        """Serve for *delay_s* seconds more, as far as the graceful timeout allows."""
        self._until(min(self._started + delay_s, self._end), lambda: False)

    def finish(self, conversations: Collection[Conversation], idle_s: float) -> None:
        """Wait for *conversations* to end; close those that still idle after *idle_s* seconds."""
        closed = monotonic()
        self._until(min(closed + idle_s, self._end), lambda: not conversations)
        while conversations and monotonic() < self._end:
            for one in list(conversations):
                one.close_if_idle()
            self._until(monotonic() + TICK_S, lambda: not conversations)
        for one in list(conversations):
            one.close_if_idle()
        for one in list(conversations):
            one.cut()
        self._until(monotonic() + self._cut_s, lambda: not conversations)

    def _until(self, end: float, is_done: Callable[[], Any]) -> None:
        while monotonic() < end and not is_done():
            self._beat()
            gevent.sleep(TICK_S)
