"""
Find the number of requests in progress that serves best. Arithmetic only; the clock is injected.

A worker that was written for threads runs with some 16 of them. With fewer the CPU is idle while
all wait, with more they compete for the locks and pools of the application. So the limit begins
at 16 and changes by what the requests in progress wait for, while others wait or there are more:

- A lock or a place in a pool that others in progress hold is scarcity: more in progress make it
  worse. The limit falls to those that do not wait for it, and a few, but not below 16; or to those
  alone, where what they wait for is a connection that the server refuses.
- The network or a timer, while the CPU is idle and nothing ends: more in progress cost nothing.
  The limit doubles, every ``STALL_S``.
- Otherwise, while the CPU has time left, a higher limit is tried and kept only if the throughput
  of successful answers rises with it. A limit that failed is not tried again soon. From time to
  time a lower limit is tried, and kept if it serves as much.
- A busy CPU needs no more than the limit to begin with: the limit goes back to it. Where the hub is
  never idle it falls to 8. They keep a CPU busy as well, and ask for fewer connections: beyond 5
  SQLAlchemy's pool makes a new one for each use.

The measure is throughput and not latency, because latency at the same limit says as much of the
routes that are asked for as of the server. Hill climbing on throughput is described, for threads,
in "Optimizing Concurrency Levels in the .NET ThreadPool" (Hellerstein et al., 2008).
"""

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import NamedTuple, Protocol

from greenline.admission.load import Load
from greenline.admission.slots import HOLD_S, MAX_HOLD_S, ConnectionSlots

INITIAL, MINIMUM, MAXIMUM = 16, 4, 1000
STALL_S = 0.05  # nothing ends for so long, and in so many times the usual pause between two ends
STALL_ENDS = 8
STANDSTILL_S = 1.0  # all wait for locks: perhaps for something that a waiting request brings
SMOOTHING_S = 0.1  # of the shares of blocked requests and idle time
SCARCE, PLENTY = 0.25, 0.1  # shares of requests in progress that wait for each other
# Shares of time in which the hub has nothing to do.
IDLE, BUSY, STALLED = 0.2, 0.1, 0.8
SATURATED, UNSATURATED, FEW = 0.02, 0.05, 8
UP, LOWER = 1.5, 0.75  # the limit that is tried, over the present one; twice where all is idle
GAIN = 0.35  # the part of a proportional gain that a higher limit has to bring
LOSS = 0.07  # what a lower one may cost
ERRORS = 0.05  # by so much may the share of errors rise
MIN_WINDOW_S, MAX_WINDOW_S, MIN_ENDED, MIN_ENDED_IDLE = 0.1, 5.0, 100, 16
WINDOW_LATENCIES, LONG_WINDOW_S = 8, 0.5  # or so long, where fewer end
DECAY_S = 5.0  # a busy CPU brings the limit back in some of these
RECOVERY_S = 0.1  # and so does the end of a scarcity


class Limit(Protocol):
    """What a limiter asks how many requests may be in progress, and reports to."""

    value: int

    def record(self, took_s: float, ok: bool) -> None:
        """Learn that a request took *took_s* seconds; *ok* is whether it was answered below 500."""

    def observe(self, load: Load) -> None:
        """Learn what the requests in progress do."""


class Fixed:
    """The limit is *value*, whatever happens."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<Fixed {self.value}>"

    def record(self, took_s: float, ok: bool) -> None:
        """Learn nothing."""

    def observe(self, load: Load) -> None:
        """Learn nothing."""


class _Measured(NamedTuple):
    """What a limit serves: successful answers a second, and the share of the others."""

    limit: float
    rate: float
    errors: float


class Adaptive:
    """
    A limit that follows what the requests in progress wait for.

    :param initial: the limit to begin with, int; a busy CPU brings the limit back to it.
    :param minimum: the limit is never lower, int.
    :param maximum: the limit is never higher, int.
    :param pool_size: returns how many connections the application's own pools have, int, 0 where
        it is not known: the limit begins there if that is more.
    :param clock: returns seconds, float, that never go back.
    """

    def __init__(
        self,
        *,
        initial: int = INITIAL,
        minimum: int = MINIMUM,
        maximum: int = MAXIMUM,
        pool_size: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._minimum, self._maximum = minimum, max(minimum, maximum)
        self.initial = min(max(initial, minimum), self._maximum)
        self._pool_size = pool_size
        self._clock = clock
        self._limit = float(self.initial)
        self.value = self.initial
        self._base: _Measured | None = None  # of the limit to which a trial is compared
        self._is_trial = False
        self._ceiling, self._ceiling_until_s, self._ceiling_hold_s = inf, 0.0, HOLD_S
        self._lower_at_s, self._lower_hold_s = 0.0, HOLD_S
        self._latency_s = 0.0
        self._blocked = self._idle = 0.0  # smoothed shares
        self._observed_s = -inf
        self._ended = self._ok = 0  # in this window
        self._ended_before = 0  # at the last look
        self._settled = False
        self._stalled_since_s = self._window_s = 0.0
        self._slots = ConnectionSlots()

    def __repr__(self) -> str:
        return (
            f"<Adaptive {self.value} latency_ms={self._latency_s * 1000:.1f} "
            f"idle={self._idle:.2f} blocked={self._blocked:.2f}>"
        )

    def begin_at(self, limit: int) -> None:
        """Go on from *limit*, which another worker has learnt."""
        self._set(limit, self._clock())

    def record(self, took_s: float, ok: bool) -> None:
        """Learn that a request took *took_s* seconds; *ok* is whether it was answered below 500."""
        self._ended += 1
        self._ok += ok
        # A stream of an hour says nothing of the others.
        self._latency_s += (min(took_s, MAX_WINDOW_S) - self._latency_s) / 16

    def observe(self, load: Load) -> None:
        """
        Learn what the requests in progress do.

        To be called every 20 ms or so while requests wait, or more are in progress than at first.
        """
        in_progress, waiting, blocked, starved, _, idle = load
        now = self._clock()
        past_s, self._observed_s = now - self._observed_s, now
        if past_s > 1.0:  # the limit did not matter meanwhile: what was measured says nothing
            self._blocked, self._idle = 0.0, 0.0
            self._begin_at_pool_size()
            # A trial was not finished.
            self._set(self._base.limit if self._base and self._is_trial else self._limit, now)
            self._stalled_since_s = now
            past_s = 0.0
        blocked -= min(starved, blocked)  # these have a rule of their own
        weight = past_s / (past_s + SMOOTHING_S)
        self._blocked += weight * (blocked / max(in_progress, 1) - self._blocked)
        self._idle += weight * (idle - self._idle)
        if self._ended != self._ended_before or idle < STALLED:
            self._ended_before = self._ended
            self._stalled_since_s = now
        stalled_s = now - self._stalled_since_s
        if self._slots.observe(load, self._limit, now):
            self._set(self._limit, now)
        elif self._blocked > SCARCE and blocked > 1:
            if not waiting or stalled_s < STANDSTILL_S:
                self._shrink(in_progress, round(self._blocked * in_progress), now)
            else:
                self._grow(in_progress, now)
        elif self._limit < self.initial and self._blocked < PLENTY and self._idle > UNSATURATED:
            # What was scarce is not any more, or another route is asked for.
            self._set(min(self._limit * (1 + past_s / RECOVERY_S), float(self.initial)), now)
        elif self._idle < BUSY and self._limit > self.initial:
            self._decay(past_s, self.initial, now)
        elif self._idle < SATURATED and self._limit > min(FEW, self.initial):
            self._decay(past_s, min(FEW, self.initial), now)
        elif (
            waiting
            and not starved
            and self._blocked < PLENTY
            and stalled_s >= self._stall_s(in_progress)
        ):
            self._grow(in_progress, now)
        elif self._is_measured(now):
            self._judge(load, now)

    def _begin_at_pool_size(self) -> None:
        size = min(self._pool_size(), self._maximum)
        if size > self.initial:
            self.initial = size
            self._limit = max(self._limit, float(size))
            self.value = round(self._limit)

    def _grow(self, in_progress: int, now: float) -> None:
        """Double: nothing ends, and nothing is busy."""
        self._set(max(self._limit, in_progress) * 2, now)
        self._stalled_since_s = now
        # It was not compared with anything: a lower one may do as well.
        self._lower_at_s = max(self._lower_at_s, now + self._lower_hold_s)

    def _shrink(self, in_progress: int, blocked: int, now: float) -> None:
        """Let those in progress be the ones that do not wait for each other, and a few."""
        free = in_progress - blocked
        # Below what threads have, a lower limit was not measured to serve more: other routes may
        # be asked for beside the one that waits.
        limit = max(free + max(1.0, free * PLENTY), float(self.initial))
        if limit < self._limit:
            self._forbid(limit + 1, now)
            self._set(limit, now)

    def _decay(self, past_s: float, lowest: int, now: float) -> None:
        """Go towards *lowest*: the CPU is busy."""
        self._set(max(self._limit * (1 - past_s / DECAY_S), lowest), now)

    def _judge(self, load: Load, now: float) -> None:
        """Compare what was measured with what the limit before served, and decide on the next."""
        base, found = self._base, self._measured(now)
        if base is not None and self._is_trial:
            if found.limit > base.limit:
                needed = 1 + GAIN * (found.limit / base.limit - 1)
                is_better = found.rate >= base.rate * needed
                is_better &= found.errors <= base.errors + ERRORS
                if not is_better:
                    self._forbid(found.limit, now)
            else:
                is_better = found.rate >= base.rate * (1 - LOSS)
                hold_s = HOLD_S if is_better else min(2 * self._lower_hold_s, MAX_HOLD_S)
                self._lower_hold_s = hold_s
                self._lower_at_s = now if is_better else now + hold_s
            if not is_better:
                self._set(base.limit, now)
                return
            if found.limit > base.limit:
                self._ceiling_hold_s = HOLD_S
        self._base, self._is_trial = found, False
        up = 2.0 if self._idle >= STALLED else UP
        higher = min(max(self._limit * up, self._limit + 1), self._maximum)
        higher = min(higher, self._slots.highest(now))
        lower = max(min(self._limit, load.in_progress) * LOWER, self.initial)
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
        self._base, self._is_trial = base, True

    def _forbid(self, limit: float, now: float) -> None:
        """Try *limit*, and what is above it, not before some seconds have passed."""
        self._ceiling, self._ceiling_until_s = limit, now + self._ceiling_hold_s
        self._ceiling_hold_s = min(2 * self._ceiling_hold_s, MAX_HOLD_S)

    def _set(self, limit: float, now: float) -> None:
        limit = min(limit, self._slots.highest(now))
        self._limit = min(max(limit, float(self._minimum)), float(self._maximum))
        self.value = round(self._limit)
        self._base, self._is_trial = None, False
        self._restart(now)

    def _restart(self, now: float) -> None:
        """Begin to measure, when all that are in progress now have ended."""
        self._ended = self._ok = self._ended_before = 0
        self._settled = False
        self._window_s = now

    def _is_measured(self, now: float) -> bool:
        """Return whether enough has ended under the present limit to tell what it serves."""
        if not self._settled:
            if self._ended >= self.value or now - self._window_s >= self._latency_s:
                self._ended = self._ended_before = self._ok = 0
                self._settled, self._window_s = True, now
            return False
        window_s = now - self._window_s
        if window_s >= self._longest_s():
            return True
        # An idle hub waits for timers and far servers, and those are regular.
        enough = MIN_ENDED_IDLE if self._idle >= STALLED else MIN_ENDED
        return window_s >= MIN_WINDOW_S and self._ended >= max(self.value, enough)

    def _stall_s(self, in_progress: int) -> float:
        """Return after which time in which nothing ends the requests do not end one by one."""
        return max(STALL_S, STALL_ENDS * self._latency_s / max(in_progress, 1))

    def _longest_s(self) -> float:
        return min(max(WINDOW_LATENCIES * self._latency_s, LONG_WINDOW_S), MAX_WINDOW_S)

    def _measured(self, now: float) -> _Measured:
        errors = 1 - self._ok / self._ended if self._ended else 0.0
        return _Measured(self._limit, self._ok / max(now - self._window_s, 1e-6), errors)
