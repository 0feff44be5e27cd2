"""
Drain the connections of a worker that stops.

First the worker continues to accept clients for a moment. Then it waits for the requests in
progress, closes idle connections when the proxy no longer uses them, and finally interrupts the
requests that remain.
"""

from collections.abc import Callable, Collection
from time import monotonic
from typing import Any, Protocol

import gevent

# The arbiter kills the worker at the graceful timeout. This part of it is reserved for closing the
# pools, at most a quarter.
LAST_S = 3.0
CUT_S = 1.0  # the part of LAST_S in which interrupted requests may end; at most half of it
TICK_S = 0.1
SEND_S = 3.0  # the longest wait for a receiver of what the worker sends


class Conversation(Protocol):
    """The methods of a client's connection that Drain calls."""

    def close_if_idle(self) -> None:
        """Close the connection, unless a request has arrived or is in progress."""

    def cut(self) -> None:
        """End the connection and its request."""

    def what(self) -> str | None:
        """Return a text that names the request in progress, None without one."""


class Guest:
    """A connection that gunicorn serves itself. Create it in the greenlet that does."""

    def __init__(self) -> None:
        self._greenlet = gevent.getcurrent()

    def close_if_idle(self) -> None:
        """Do nothing: whether it is idle is unknown."""

    def cut(self) -> None:
        """Kill the greenlet."""
        gevent.kill(self._greenlet)

    def what(self) -> str:
        """Return a fixed text: the request is unknown."""
        return "a connection of gunicorn's own"


class Drain:
    """
    The stop of one worker. Create it when the stop begins.

    :param graceful_s: gunicorn's ``graceful_timeout``, float, in seconds.
    :param beat: notifies the arbiter, so that it does not kill the worker meanwhile.
    """

    def __init__(self, graceful_s: float, beat: Callable[[], None]) -> None:
        self._started = monotonic()
        last_s = min(LAST_S, graceful_s / 4)
        self._end = self._started + graceful_s - last_s
        self._cut_s = min(CUT_S, last_s / 2)
        self._beat = beat

    def go_on(self, delay_s: float) -> None:
        """Continue to serve for *delay_s* seconds, within the graceful timeout."""
        self._until(min(self._started + delay_s, self._end), lambda: False)

    def finish(self, conversations: Collection[Conversation], idle_s: float) -> None:
        """
        Wait for the connections to end, and end those that do not.

        :param conversations: the connections; each one removes itself when it ends.
        :param idle_s: seconds after which idle ones are closed, float.
        """
        # Idle connections stay open until the proxy has closed them by itself: a request that it is
        # about to send would end as a 502.
        closed = monotonic()
        self._until(min(closed + idle_s, self._end), lambda: not conversations)
        while conversations and monotonic() < self._end:
            # Again and again: more become idle, as their requests end.
            for one in list(conversations):
                one.close_if_idle()
            self._until(monotonic() + TICK_S, lambda: not conversations)
        for one in list(conversations):
            one.close_if_idle()
        for one in list(conversations):
            one.cut()
        self._until(monotonic() + self._cut_s, lambda: not conversations)

    def wait_for(self, is_sent: Callable[[], object]) -> None:
        """
        Wait until what the worker sends has arrived, for ``SEND_S`` at most.

        :param is_sent: returns whether it has.
        """
        # At least a moment where requests have used all of the time.
        end = max(min(monotonic() + SEND_S, self._end), monotonic() + self._cut_s)
        self._until(end, is_sent)

    def _until(self, end: float, is_done: Callable[[], Any]) -> None:
        while monotonic() < end and not is_done():
            self._beat()
            gevent.sleep(TICK_S)
