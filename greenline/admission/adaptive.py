"""
Find the number of requests in progress at which a worker serves best. Arithmetic only, with an
injected clock.

The measure is the throughput of successful answers, not latency, because latency at the same limit
says as much of the requested routes as of the server. Hill climbing on throughput is described, for
threads, in "Optimizing Concurrency Levels in the .NET ThreadPool" (Hellerstein et al., 2008).

The limit begins at 16, about the number of threads of a worker that was written for threads. With
fewer requests the CPU is idle while all wait; with more they compete for the application's locks
and pools. The limit changes by the waits of the requests in progress, while others wait or more
than 16 are in progress: see :meth:`Adaptive.observe`.
"""

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import NamedTuple, Protocol

from greenline.admission.load import Load
from greenline.admission.slots import HOLD_S, MAX_HOLD_S, ConnectionSlots

INITIAL, MINIMUM, MAXIMUM = 16, 4, 1000
# No request ends for so long, and for so many times the usual time between two ends.
STALL_S = 0.05
STALL_ENDS = 8
# All wait for locks for so long: a request in the queue may have to release them.
STANDSTILL_S = 1.0
TRIAL_S = 0.2  # so soon a request ends, where more in progress end a standstill
SMOOTHING_S = 0.1  # time constant of the shares of blocked requests and idle time
SCARCE, PLENTY = 0.25, 0.1  # shares of requests in progress that wait for each other
# Shares of time in which the hub is idle.
IDLE, BUSY, STALLED = 0.2, 0.1, 0.8
SATURATED, UNSATURATED, FEW = 0.02, 0.05, 8
UP, LOWER = 1.5, 0.75  # factors of a limit to try; 2 instead of UP where the hub is idle
GAIN = 0.35  # the part of a proportional gain that a higher limit must bring
LOSS = 0.07  # the part of the throughput that a lower limit may cost
ERRORS = 0.05  # the share of errors may rise by this
MIN_WINDOW_S, MAX_WINDOW_S, MIN_ENDED, MIN_ENDED_IDLE = 0.1, 5.0, 100, 16
WINDOW_LATENCIES, LONG_WINDOW_S = 8, 0.5  # the longest window: 8 latencies, at least 0.5 s
SMOOTHING_WINDOWS = 4  # of the rate of a limit that stays
MIN_LATENCIES = 4  # in the shortest window, which is no longer than LONG_WINDOW_S
# Time constants of the return of the limit under a busy CPU: of one that waits have raised, and of
# the size of a pool, which may be for requests that wait.
DECAY_S, POOL_DECAY_S = 5.0, 0.5
RECOVERY_S = 0.1  # time constant of the return after a scarcity


class Limit(Protocol):
    """
    The interface of a limit: the number of requests that may be in progress.

    :ivar value: the present limit, int.
    :ivar is_adaptive: whether it may change, bool; what an operator has set is kept exactly.
    """

    value: int
    is_adaptive: bool

    def record(self, took_s: float, ok: bool) -> None:
        """
        Note the end of a request.

        :param took_s: seconds in progress, float.
        :param ok: whether the status of the answer was below 500.
        """

    def observe(self, load: Load) -> None:
        """Note the present state of the requests."""


class Fixed:
    """
    Keep the same limit.

    :param value: the limit, int.
    """

    is_adaptive = False

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<Fixed {self.value}>"

    def record(self, took_s: float, ok: bool) -> None:
        """Do nothing."""

    def observe(self, load: Load) -> None:
        """Do nothing."""


class _Measured(NamedTuple):
    """The measurement of a limit: successful answers a second, and the share of other answers."""

    limit: float
    rate: float
    errors: float


class Adaptive:
    """
    Adapt a limit to the waits of the requests in progress.

    :param initial: the first limit, int, to which a busy CPU brings it back. Default 16.
    :param minimum: the lowest limit, int. Default 4.
    :param maximum: the highest limit, int. Default 1000.
    :param pool_size: returns the number of connections of the application's pools, int, 0 where it
        is not known: that is *initial* if it is more. Default: 0.
    :param first: returns the limit, int, at which a burst begins if it is more than *initial*; a
        busy CPU reduces it from there. Default: 0.
    :param clock: returns monotonic seconds, float. Default: :func:`time.monotonic`.
    """

    is_adaptive = True

    def __init__(
        self,
        *,
        initial: int = INITIAL,
        minimum: int = MINIMUM,
        maximum: int = MAXIMUM,
        pool_size: Callable[[], int] = lambda: 0,
        first: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._minimum, self._maximum = minimum, max(minimum, maximum)
        self.initial = min(max(initial, minimum), self._maximum)
        self._pool_size, self._first = pool_size, first
        self._clock = clock
        self._limit = float(self.initial)
        self.value = self.initial
        self._base: _Measured | None = None  # of the limit with which a probe is compared
        self._is_probe = False
        self._ceiling, self._ceiling_until_s, self._ceiling_hold_s = inf, 0.0, HOLD_S
        self._lower_at_s, self._lower_hold_s = 0.0, HOLD_S
        # The limit that has ended a standstill, from when it is tried and until when it is kept.
        self._floor, self._floor_s, self._floor_until_s = 0.0, -inf, -inf
        self._floor_hold_s, self._is_trial = HOLD_S, False
        self._latency_s = 0.0
        self._blocked = self._idle = 0.0  # smoothed shares
        self._observed_s = -inf
        self._ended = self._ok = 0  # in this window
        self._ended_before = 0  # at the last call of observe()
        self._most = 0  # in progress in this window
        self._settled = False
        self._stalled_since_s = self._window_s = self._ended_s = 0.0
        self._slots = ConnectionSlots()

    def __repr__(self) -> str:
        return (
            f"<Adaptive {self.value} latency_ms={self._latency_s * 1000:.1f} "
            f"idle={self._idle:.2f} blocked={self._blocked:.2f}>"
        )

    def begin_at(self, limit: int) -> None:
        """Continue from *limit*, which another worker has found."""
        self._set(limit, self._clock())

    def record(self, took_s: float, ok: bool) -> None:
        """
        Note the end of a request.

        :param took_s: seconds in progress, float.
        :param ok: whether the status of the answer was below 500.
        """
        self._ended += 1
        self._ok += ok
        self._ended_s = self._clock()
        # Bounded, because a stream of an hour says nothing of the other requests.
        self._latency_s += (min(took_s, MAX_WINDOW_S) - self._latency_s) / 16

    def observe(self, load: Load) -> None:
        """
        Adapt the limit to the present state of the requests.

        Call this about every 20 ms while requests wait or more than ``INITIAL`` are in progress.
        """
        in_progress, waiting, blocked, starved, _, interrupted, idle = load
        self._most = max(self._most, in_progress)
        now = self._clock()
        past_s, self._observed_s = now - self._observed_s, now
        # The limit did not matter for a while: the measurements of before say nothing.
        if past_s > 1.0:
            self._blocked, self._idle = 0.0, 0.0
            self._begin_at_pool_size()
            # Undo a probe that was not finished.
            self._set(self._base.limit if self._base and self._is_probe else self._limit, now)
            self._stalled_since_s = now
            past_s = 0.0
        blocked -= min(starved, blocked)  # ConnectionSlots judges the starved ones
        weight = past_s / (past_s + SMOOTHING_S)
        self._blocked += weight * (blocked / max(in_progress, 1) - self._blocked)
        self._idle += weight * (idle - self._idle)
        if self._ended != self._ended_before or idle < STALLED:
            self._ended_before = self._ended
            self._stalled_since_s = now
        stalled_s = now - self._stalled_since_s
        if self._is_trial and self._ended:
            self._is_trial = False
            # A failure ends it as well, such as that of a wait for a connection of a pool.
            if self._ok == self._ended and now - self._floor_s <= TRIAL_S:
                self._keep(now)
        if self._slots.observe(load, self._limit, now):
            # A server refuses connections: fall to the number of requests that have one.
            self._set(self._limit, now)
        elif self._blocked > SCARCE and blocked > 1:
            # Many wait for locks or connections that others in progress hold: more in progress
            # make that worse.
            if not waiting or stalled_s < STANDSTILL_S:
                self._shrink(in_progress, round(self._blocked * in_progress), now)
            else:
                self._grow(in_progress, now)
                self._floor, self._floor_s, self._is_trial = self._limit, now, True
        elif self._limit < self.initial and self._blocked < PLENTY and self._idle > UNSATURATED:
            # The scarcity has ended, or other routes are requested.
            self._set(min(self._limit * (1 + past_s / RECOVERY_S), float(self.initial)), now)
        elif self._idle < BUSY and self._limit > self.initial:
            # A busy CPU needs no more than the first limit.
            is_of_pool = self._limit <= self._first()
            self._decay(past_s, self.initial, now, POOL_DECAY_S if is_of_pool else DECAY_S)
        elif self._idle < SATURATED and min(FEW, self.initial) <= self._limit != (
            few := self._few(interrupted, now)
        ):
            self._decay(past_s, few, now)
        elif (
            waiting
            and not starved
            and self._blocked < PLENTY
            and stalled_s >= self._stall_s(in_progress)
        ):
            # All wait for the network or a timer, and the CPU is idle: more cost nothing.
            self._grow(in_progress, now)
        elif self._is_measured(now):
            # The CPU has time left: try another limit, and keep it only if it serves better.
            self._judge(load, now)

    def _begin_at_pool_size(self) -> None:
        self.initial = max(self.initial, min(self._pool_size(), self._maximum))
        first = max(self.initial, min(self._first(), self._maximum))
        if first > self._limit:
            self._limit = float(first)
            self.value = first

    def _few(self, interrupted: int, now: float) -> float:
        """Return the limit under a CPU that is never idle."""
        # 8 keep a CPU busy as well as the first limit does, and need fewer connections: beyond 5,
        # SQLAlchemy's pool makes a new one for each use. Those that compute for long are not among
        # them: a small page would wait until one of 8 has ended.
        return min(FEW + interrupted, self.initial, self._slots.highest(now))

    def _grow(self, in_progress: int, now: float) -> None:
        """Double the limit: no request ends, and the CPU is idle."""
        self._set(max(self._limit, in_progress) * 2, now)
        self._stalled_since_s = now
        # The new limit was not compared with another one: a lower one may serve as much.
        self._lower_at_s = max(self._lower_at_s, now + self._lower_hold_s)

    def _keep(self, now: float) -> None:
        """Keep the limit that has ended a standstill for some seconds, doubled at each new one."""
        # Long polls may wait for a semaphore: with fewer places than they are, none is left.
        is_soon = now - self._floor_until_s <= MAX_HOLD_S
        self._floor_hold_s = min(2 * self._floor_hold_s, MAX_HOLD_S) if is_soon else HOLD_S
        self._floor_until_s = now + self._floor_hold_s

    def _shrink(self, in_progress: int, blocked: int, now: float) -> None:
        """Reduce the limit to the requests that do not wait for each other, and a few more."""
        free = in_progress - blocked
        # Not below the first limit: no measurement showed that this serves more, and other routes
        # may be requested besides the one that waits.
        is_kept = now < max(self._floor_until_s, self._floor_s + TRIAL_S)
        lowest = max(self._floor if is_kept else 0.0, float(self.initial))
        limit = max(free + max(1.0, free * PLENTY), lowest)
        if limit < self._limit:
            self._forbid(limit + 1, now)
            self._set(limit, now)

    def _decay(self, past_s: float, lowest: float, now: float, decay_s: float = DECAY_S) -> None:
        """Move the limit down towards *lowest*, or up to it at once: the CPU is busy."""
        self._set(max(self._limit * (1 - past_s / decay_s), lowest), now)

    def _judge(self, load: Load, now: float) -> None:
        """Compare the measurement with that of the limit before, and choose the next limit."""
        base, found = self._base, self._measured(now)
        if base is not None and self._is_probe:
            enough = base.limit
            if found.limit > base.limit:
                needed = 1 + GAIN * (found.limit / base.limit - 1)
                is_good = found.errors <= base.errors + ERRORS
                is_better = is_good and found.rate >= base.rate * needed
                if not is_better:
                    self._forbid(found.limit, now)
                    # So many give its rate at the latency of the lower limit (Little's law).
                    enough *= max(1.0, found.rate / base.rate) if is_good and base.rate else 1.0
            else:
                is_better = found.rate >= base.rate * (1 - LOSS)
                hold_s = HOLD_S if is_better else min(2 * self._lower_hold_s, MAX_HOLD_S)
                self._lower_hold_s = hold_s
                self._lower_at_s = now if is_better else now + hold_s
                if is_better:  # the higher limit is not needed: it is not tried again at once
                    self._ceiling, self._ceiling_until_s = base.limit, now + HOLD_S
            if not is_better:
                self._set(enough, now)
                return
            if found.limit > base.limit:
                self._ceiling_hold_s = HOLD_S
        elif base is not None:
            found = found._replace(rate=base.rate + (found.rate - base.rate) / SMOOTHING_WINDOWS)
        self._base, self._is_probe = found, False
        # A higher limit only while requests wait for it; from time to time a lower one.
        up = 2.0 if self._idle >= STALLED else UP
        higher = min(max(self._limit * up, self._limit + 1), self._maximum)
        higher = min(higher, self._slots.highest(now))
        # Not of those in progress now: requests of equal length end in batches.
        lower = max(min(self._limit, self._most) * LOWER, self.initial)
        if (
            load.waiting
            and not load.starved
            and self._idle >= IDLE
            and self._blocked < PLENTY
            and higher > self._limit
            and (higher < self._ceiling or now >= self._ceiling_until_s)
        ):
            self._try(higher, found, now)
        elif lower < self._limit and now >= self._lower_at_s:
            self._try(lower, found, now)
        else:
            self._restart(now)

    def _try(self, limit: float, base: _Measured, now: float) -> None:
        self._set(limit, now)
        self._base, self._is_probe = base, True

    def _forbid(self, limit: float, now: float) -> None:
        """Prevent probes of *limit* and higher limits for some seconds, doubled each time."""
        self._ceiling, self._ceiling_until_s = limit, now + self._ceiling_hold_s
        self._ceiling_hold_s = min(2 * self._ceiling_hold_s, MAX_HOLD_S)

    def _set(self, limit: float, now: float) -> None:
        limit = min(limit, self._slots.highest(now))
        self._limit = min(max(limit, float(self._minimum)), float(self._maximum))
        self.value = round(self._limit)
        self._base, self._is_probe = None, False
        self._restart(now)

    def _restart(self, now: float) -> None:
        """Begin a new measurement."""
        # Its window begins when the requests in progress, admitted under another limit, have ended.
        self._ended = self._ok = self._ended_before = self._most = 0
        self._settled = False
        self._window_s = now

    def _is_measured(self, now: float) -> bool:
        """Return whether enough requests have ended under the present limit to judge it."""
        if not self._settled:
            waited_s = self._latency_s if self._ended else self._longest_s()
            if self._ended >= self.value or now - self._window_s >= waited_s:
                self._ended = self._ended_before = self._ok = 0
                self._settled, self._window_s = True, self._last_end_s(now)
            return False
        window_s = now - self._window_s
        # A lower limit has to be measured well: without it nothing is lost.
        is_lower = self._is_probe and self._base is not None and self._limit < self._base.limit
        is_long = window_s >= self._longest_s()
        if is_lower or is_long:
            return is_long
        # An idle hub waits for timers and remote servers, whose times vary little.
        enough = MIN_ENDED_IDLE if self._idle >= STALLED else MIN_ENDED
        # Some latencies: requests of equal length end in batches, of which a short window has one
        # more or less.
        shortest_s = max(MIN_WINDOW_S, min(MIN_LATENCIES * self._latency_s, LONG_WINDOW_S))
        return window_s >= shortest_s and self._ended >= max(self.value, enough)

    def _stall_s(self, in_progress: int) -> float:
        """Return the seconds without an end after which the requests are taken to be stalled."""
        return max(STALL_S, STALL_ENDS * self._latency_s / max(in_progress, 1))

    def _longest_s(self) -> float:
        return min(max(WINDOW_LATENCIES * self._latency_s, LONG_WINDOW_S), MAX_WINDOW_S)

    def _measured(self, now: float) -> _Measured:
        errors = 1 - self._ok / self._ended if self._ended else 0.0
        window_s = self._last_end_s(now) - self._window_s
        return _Measured(self._limit, self._ok / max(window_s, 1e-6), errors)

    def _last_end_s(self, now: float) -> float:
        """Return the time at which a window of measurement begins or ends."""
        # At the end of a batch, unless no request has ended for long: whole batches are measured.
        return self._ended_s if now - self._ended_s < self._latency_s else now
