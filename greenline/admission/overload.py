"""
Tell an overload from a long queue. Arithmetic only; the clock is injected.

Two hundred clients that each wait for their answer before they ask again make a queue that is
long but does not grow: each request has its turn, and a client that is refused only asks again.
Clients that come whether or not others were answered make a queue that grows as long as more come
than are served; served in order, all requests are late in the end. So the queue is judged by its
growth. When it has grown for two seconds and a request would wait ``LATE_S``, it is held to
``KEEP_S`` of work: the oldest requests are refused, and so are those that come when it is full,
until no more come than are served.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import NamedTuple

WINDOW_S, WINDOWS = 0.25, 8
LATE_S, KEEP_S = 1.0, 0.25
MORE = 1.1  # in an overload, so many times as many requests come as end
MIN_GROWTH = 2  # in a second
MIN_QUEUE = 8  # a queue that is never too long


class _Window(NamedTuple):
    came: int
    ended: int
    waiting: int  # at its end
    is_full: bool


class Overload:
    """
    How many requests may wait: ``max_waiting``, infinite unless there is an overload.

    :param clock: returns seconds, float, that never go back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.max_waiting = inf
        self.came = self.ended = 0  # requests that came, admitted or not; and that have ended
        self._windows: deque[_Window] = deque(maxlen=WINDOWS)
        self._window_s = clock()

    def __repr__(self) -> str:
        return f"<Overload max_waiting={self.max_waiting}>"

    def observe(self, waiting: int, *, is_full: bool = False) -> None:
        """
        Check whether the queue grows: call it every few hundredths of a second.

        :param waiting: how many requests wait.
        :param is_full: whether clients wait that cannot even be accepted: their queue grows unseen.
        """
        now = self._clock()
        past_s = now - self._window_s
        if past_s < WINDOW_S:
            return
        windows = self._windows
        if past_s > 4 * WINDOW_S:  # there was no queue
            windows.clear()
        windows.append(_Window(self.came, self.ended, waiting, is_full))
        self.came = self.ended = 0
        self._window_s = now
        came, ended = sum(each.came for each in windows), sum(each.ended for each in windows)
        rate = ended / (len(windows) * WINDOW_S)
        if self.max_waiting < inf:
            is_over = came > MORE * ended or is_full
        else:
            is_over = self._has_grown(rate) and waiting > rate * LATE_S
        self.max_waiting = max(rate * KEEP_S, MIN_QUEUE) if is_over else inf

    def _has_grown(self, rate: float) -> bool:
        """Return whether the queue grew in the last second, and in the one before it."""
        windows = self._windows
        if len(windows) < WINDOWS:
            return False
        if all(each.is_full for each in windows):
            return True
        growth = max(MIN_GROWTH, (MORE - 1) * rate)
        first, middle, last = windows[0], windows[WINDOWS // 2 - 1], windows[-1]
        return last.waiting - middle.waiting >= growth <= middle.waiting - first.waiting
