"""
How many requests may be in progress: a number, or found out by latency. Arithmetic only.

:class:`Gradient` follows the gradients of Netflix's concurrency-limits. By Little's law a server
that works on N requests at once, each B seconds, answers L at once in B * L / N: latency over B
tells how much of L is a queue. Where it departs from them:

1. B is measured, not guessed. gradient2's long average follows an overload that lasts until it
   calls it normal, and the limit grows without end; Vegas's least of all latencies takes the
   quickest route for all of them, and refuses nearly everything.
2. Latency is the mean of a window, because Little's law holds for means: routes of 1 ms and of
   100 ms are one load as long as their mixture is. ``TOLERANCE`` leaves room for its changes.
3. Only requests that began in the window count: they saw its limit, and a response that streams
   for a minute says nothing of the others. A failure counts when it took longer than B: an
   error at once is no fast answer, a timeout is a slow one.
4. While less than half of the limit is used, latency is the server's own: B follows it both
   ways, and the limit does not grow, because nothing was tried.
5. An overload hides B. When B is old, or half of the limit did not bring latency down to it, and
   requests are being refused anyway, a part of the limit is admitted for one window: B is what
   that takes. An overloaded server gives a few answers in a hundred for it.
6. Latency counts from admission, so the wait for a connection of our own pool is the queue that
   is bounded: N is about the pool's size then, and the limit comes to about 1.5 N + sqrt(N).

Not for long polls: a place that is held for a minute is learnt from once in a minute.
"""

from collections.abc import Callable
from math import inf, sqrt
from time import monotonic
from typing import Protocol

TOLERANCE = 1.5
SMOOTHING = 0.2  # the part of a new B that is taken at once
MIN_SAMPLES = 10
MIN_LATENCY_S = 1e-6
# A window lasts some latencies, or it would see only the quick ones.
WINDOW_LATENCIES, MIN_WINDOW_S, MAX_WINDOW_S = 5, 0.5, 10.0
# A probe takes some latencies too, at this part of the limit.
PROBE_LATENCIES, PROBE_S, PROBE_PART = 100, 30.0, 0.25


class Limit(Protocol):
    """What a gate asks, how many at once, and tells, how long one took."""

    value: int

    def record(self, started_s: float, in_progress: int, ok: bool) -> None:
        """Learn from a request that began at *started_s* and ends now, one of *in_progress*."""


class Fixed:
    """The limit is *value*, whatever happens."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<Fixed {self.value}>"

    def record(self, started_s: float, in_progress: int, ok: bool) -> None:
        """Learn nothing."""


class Gradient:
    """
    A limit from *minimum* to *maximum* that keeps latency near what the server needs.

    *clock* gives seconds and never goes back.
    """

    def __init__(
        self,
        *,
        initial: int = 20,
        minimum: int = 4,
        maximum: int = 1000,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.value = min(max(initial, minimum), maximum)
        self.base_s = 0.0  # B; 0 as long as it is unknown
        self.latency_s = 0.0  # of the last window
        self._limit = float(self.value)
        self._minimum = minimum
        self._maximum = maximum
        self._clock = clock
        self._probing = False
        self._starting = True  # until there is a queue, the limit doubles
        self._measured_s = -inf  # when B was; never: what the first window tells is provisional
        self._highest_limit = 0.0  # since then
        self._count, self._highest, self._sum_s = 0, 0, 0.0  # of this window
        self._open(clock())

    def __repr__(self) -> str:
        latency_ms, base_ms = self.latency_s * 1000, self.base_s * 1000
        return f"<Gradient {self.value} latency_ms={latency_ms:.1f} base_ms={base_ms:.1f}>"

    def record(self, started_s: float, in_progress: int, ok: bool) -> None:
        """Learn from a request that began at *started_s* and ends now, one of *in_progress*."""
        if in_progress > self._highest:
            self._highest = in_progress
        if started_s < self._began_s:
            return
        now = self._clock()
        took_s = now - started_s
        if not ok and took_s < self.base_s:
            return
        self._count += 1
        self._sum_s += took_s
        if now >= self._ends_s and self._count >= MIN_SAMPLES:
            self._learn(max(self._sum_s / self._count, MIN_LATENCY_S), now)
            self._open(now)

    def _open(self, now: float) -> None:
        self._began_s = now
        length_s = min(WINDOW_LATENCIES * self.latency_s, MAX_WINDOW_S)
        self._ends_s = now + max(length_s, MIN_WINDOW_S)
        self._count, self._highest, self._sum_s = 0, 0, 0.0

    def _learn(self, latency_s: float, now: float) -> None:
        old_base_s, self.latency_s = self.base_s or latency_s, latency_s
        is_idle = self._highest < self._limit / 2
        if self._probing:
            self.base_s = latency_s
            self._starting |= latency_s > TOLERANCE * old_base_s  # then the limit was wrong, too
        elif is_idle or latency_s < old_base_s:
            self.base_s = old_base_s + SMOOTHING * (latency_s - old_base_s)
        else:
            self.base_s = old_base_s
        if self._probing or is_idle:
            self._measured_s, self._highest_limit, self._probing = now, self._limit, False
        elif self._highest >= self.value and self._is_doubtful(now):
            self._probing = True
            self.value = max(int(self._limit * PROBE_PART), self._minimum)
            return
        else:
            self._adjust()
        self.value = int(self._limit)

    def _is_doubtful(self, now: float) -> bool:
        """Return whether B is old, or was not reached at half of the limit."""
        age_s = now - self._measured_s
        is_old = age_s >= max(PROBE_S, PROBE_LATENCIES * self.latency_s)
        return is_old or self._limit < self._highest_limit / 2

    def _adjust(self) -> None:
        gradient = min(max(TOLERANCE * self.base_s / self.latency_s, 0.5), 1.0)
        self._starting = self._starting and gradient == 1.0
        room = self._limit if self._starting else sqrt(self._limit)
        self._limit = min(max(self._limit * gradient + room, self._minimum), self._maximum)
        self._highest_limit = max(self._highest_limit, self._limit)
