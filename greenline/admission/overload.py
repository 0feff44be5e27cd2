"""
Distinguish an overload from a long queue. Arithmetic only, with an injected clock.

Clients that wait for each answer before they ask again make a queue that may be long but does not
grow; each request is served in time. Clients that come independently make a queue that grows while
more requests come than are served; in the order of arrival, all would be served too late. So the
measure is whether the number of clients grows, accepted or not.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import NamedTuple

WINDOW_S, WINDOWS, PROBE_WINDOWS = 0.25, 8, 2
LATE_S, KEEP_S, TRY_S, PROBE_S = 1.0, 0.25, 2.0, 1.0
MORE = 1.1  # more come than end if the ratio is above this
MIN_GROWTH = 2  # clients in a second
# Of the clients, in a second: those that reconnect after each answer are not counted at all times.
MIN_GROWTH_SHARE = 0.02
LEFT = 0.5  # a fall below this share of the clients ends a burst: a later growth is another one
MIN_QUEUE = 8  # a queue of this length is never too long
# Clients that wait for their answers are rarely more than this. While they arrive, one after the
# other, they look like an overload, and threads would serve them all.
MIN_OVERLOAD = 250


class _Window(NamedTuple):
    came: float
    ended: int
    present: float  # clients, accepted or not, at its end
    is_full: bool  # more clients may be unaccepted than can be counted
    length_s: float


class Overload:
    """
    Compute ``max_waiting``, the number of requests that may wait; infinite without an overload.

    :param connected: returns the number of connected clients, int. Default: 0.
    :param unaccepted: returns the number of clients not accepted yet, float; infinite: more than
        can be counted. Default: 0.
    :param clock: returns monotonic seconds, float. Default: :func:`time.monotonic`.
    """

    def __init__(
        self,
        connected: Callable[[], int] = lambda: 0,
        unaccepted: Callable[[], float] = lambda: 0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._connected = connected
        self._unaccepted = unaccepted
        self._clock = clock
        self.max_waiting: float = inf
        self.came = self.ended = 0  # requests that came, admitted or not, and that ended
        self._outside = 0.0  # clients that were not accepted at the end of the last window
        self._windows: deque[_Window] = deque(maxlen=WINDOWS)
        self._window_s = clock()
        self._held_s = 0.0  # the time at which the queue was last bounded
        self._probed_s: float | None = None  # the time at which the bound was lifted for a probe

    def __repr__(self) -> str:
        return f"<Overload max_waiting={self.max_waiting}>"

    def observe(self, waiting: int, in_progress: int) -> None:
        """
        Update ``max_waiting``. Call this every few hundredths of a second while requests wait.

        :param waiting: the number of waiting requests, int.
        :param in_progress: the number of requests in progress, int.
        """
        now = self._clock()
        past_s = now - self._window_s
        if past_s < WINDOW_S:
            return
        windows = self._windows
        if past_s > 4 * WINDOW_S:  # there was no queue
            self._release()
        outside = self._unaccepted()
        is_full = outside == inf
        if is_full:  # uncountable, but at least as many as before
            outside = self._outside
        came = self.came + outside - self._outside
        # A connection with HTTP/2 has many requests, so the requests may outnumber the clients.
        present = max(waiting + in_progress, self._connected()) + outside
        windows.append(_Window(came, self.ended, present, is_full, past_s))
        self.came = self.ended = 0
        self._window_s, self._outside = now, outside
        rate = sum(each.ended for each in windows) / sum(each.length_s for each in windows)
        if self.max_waiting < inf:
            # The overload ends when no more come than are served.
            if not self._comes_faster(WINDOWS):
                self._release()
            # Refused clients that come back look like an overload as well. So the queue may grow
            # now and then: clients that wait for their answers are all in it soon, and come no
            # faster than they are served then.
            elif now - self._held_s >= TRY_S:
                self.max_waiting, self._probed_s = inf, now
        elif self._probed_s is None:
            # An overload: for two seconds the number of clients grew and was not worked off in
            # between, MIN_OVERLOAD requests wait, and a further one would wait for LATE_S.
            if self._has_grown(rate) and waiting > max(rate * LATE_S, MIN_OVERLOAD):
                self._hold(now)
        elif now - self._probed_s >= PROBE_S:
            if self._comes_faster(PROBE_WINDOWS):
                self._hold(now)
            else:
                self._release()
        # Bound the queue to KEEP_S of work, so that the admitted requests are served in time.
        if self.max_waiting < inf:
            self.max_waiting = max(rate * KEEP_S, MIN_QUEUE)

    def _hold(self, now: float) -> None:
        self.max_waiting, self._held_s, self._probed_s = MIN_QUEUE, now, None

    def _release(self) -> None:
        self.max_waiting, self._probed_s = inf, None
        self._windows.clear()

    def _comes_faster(self, count: int) -> bool:
        """Return whether more came than ended in the last *count* windows."""
        last = list(self._windows)[-count:]
        came, ended = sum(each.came for each in last), sum(each.ended for each in last)
        return came > MORE * ended or last[-1].is_full

    def _has_grown(self, rate: float) -> bool:
        """Return whether the clients became more in the last second, and in the one before it."""
        windows = self._windows
        if len(windows) < WINDOWS:
            return False
        if all(each.is_full for each in windows):
            return True
        highest = 0.0
        for window in windows:
            if window.present < LEFT * highest:
                return False
            highest = max(highest, window.present)
        first, middle, last = windows[0], windows[WINDOWS // 2 - 1], windows[-1]
        growth = max(MIN_GROWTH, (MORE - 1) * rate, MIN_GROWTH_SHARE * last.present)
        return last.present - middle.present >= growth <= middle.present - first.present
