"""
Distinguish an overload from a long queue. Arithmetic only; the clock is injected.

Two hundred clients that each wait for their answer before they ask again make a queue that is
long but does not grow. Each request has its turn there, and a client that is refused asks again.
Clients that do not wait for each other make a queue that grows while more requests come than are
served. In the order of arrival all of them are served too late in the end. So what counts
is whether the clients become more: those that are connected, and those not accepted yet. An
overload is that they do for two seconds, that they are not worked off in between, that
``MIN_OVERLOAD`` requests wait, and that one more would wait ``LATE_S``. Then the queue is held to
``KEEP_S`` of work: the oldest are refused, and so are new ones beyond it, until no more come than
are served. Refused clients that come back look the same, so every ``TRY_S`` the queue may grow for
``PROBE_S``. Clients that wait for their answers are all in the queue soon, and come no faster than
they are served then.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import NamedTuple

WINDOW_S, WINDOWS, PROBE_WINDOWS = 0.25, 8, 2
LATE_S, KEEP_S, TRY_S, PROBE_S = 1.0, 0.25, 2.0, 1.0
MORE = 1.1  # so many times as many come as end
MIN_GROWTH = 2  # in a second
# Of the clients, in a second: some of those that close after each answer are on their way.
MIN_GROWTH_SHARE = 0.02
LEFT = 0.5  # a queue that fell below this part of what it was is worked off: another burst follows
MIN_QUEUE = 8  # a queue that is never too long
# Clients that wait for their answers are rarely more, and while they come one after the other they
# look like an overload. Threads would serve them all.
MIN_OVERLOAD = 250


class _Window(NamedTuple):
    came: float
    ended: int
    present: float  # clients, accepted or not, at its end
    is_full: bool  # more may wait than can be counted
    length_s: float


class Overload:
    """
    How many requests may wait: ``max_waiting``, infinite unless there is an overload.

    :param connected: returns how many clients are connected, int.
    :param unaccepted: returns how many clients are not accepted yet, float; infinite: more than can
        be counted.
    :param clock: returns seconds, float, that never go back.
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
        self.came = self.ended = 0  # requests that came, admitted or not; and that have ended
        self._outside = 0.0  # clients that were not accepted at the end of the last window
        self._windows: deque[_Window] = deque(maxlen=WINDOWS)
        self._window_s = clock()
        self._held_s = 0.0  # when the queue was held short
        self._probed_s: float | None = None  # when it was let grow again

    def __repr__(self) -> str:
        return f"<Overload max_waiting={self.max_waiting}>"

    def observe(self, waiting: int, in_progress: int) -> None:
        """
        Look whether the queue grows: call it every few hundredths of a second while it is there.

        :param waiting: how many requests wait.
        :param in_progress: how many are worked on.
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
        if is_full:  # at least as many as before
            outside = self._outside
        came = self.came + outside - self._outside
        # A connection of HTTP/2 has many requests.
        present = max(waiting + in_progress, self._connected()) + outside
        windows.append(_Window(came, self.ended, present, is_full, past_s))
        self.came = self.ended = 0
        self._window_s, self._outside = now, outside
        rate = sum(each.ended for each in windows) / sum(each.length_s for each in windows)
        if self.max_waiting < inf:
            if not self._comes_faster(WINDOWS):
                self._release()
            elif now - self._held_s >= TRY_S:
                self.max_waiting, self._probed_s = inf, now
        elif self._probed_s is None:
            if self._has_grown(rate) and waiting > max(rate * LATE_S, MIN_OVERLOAD):
                self._hold(now)
        elif now - self._probed_s >= PROBE_S:
            if self._comes_faster(PROBE_WINDOWS):
                self._hold(now)
            else:
                self._release()
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
