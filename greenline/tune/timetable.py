"""Divide a bounded time among the parts of a measurement: arithmetic, with the clock injected."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

ROUNDS = 3
WARM_UP_S, MAX_WARM_UP_S = 0.5, 2.0
SECONDS_S, MAX_SECONDS_S = 1.0, 10.0  # of a round that counts
FIRST_END_S = 1.0  # beside a round: the generator starts, and the last answers come
FIRST_START_S = 4.0  # of a server, until one was measured
# What each part may take of the time that is left when it begins, in their order.
PARTS = {
    "rough rate": 0.12, "pool": 0.16, "workers": 0.2, "limit": 0.2, "rate": 0.38, "idle": 0.3,
    "proof": 0.85, "rate alone": 0.95,
}  # fmt: skip

LARGEST_SHARE = 0.6


class Slice(NamedTuple):
    """
    One round.

    :param warm_up_s: float seconds.
    :param seconds: float.
    """

    warm_up_s: float
    seconds: float

    @property
    def total_s(self) -> float:
        """Both."""
        return self.warm_up_s + self.seconds


class Timetable:
    """
    The time that is left.

    :param total_s: float seconds, from now.
    :param clock: returns monotonic seconds.
    """

    def __init__(self, total_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.total_s, self.begun_s = total_s, clock()
        # As the last ones took.
        self.start_s, self.end_s = FIRST_START_S, FIRST_END_S

    @property
    def used_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self.begun_s

    @property
    def left_s(self) -> float:
        """Seconds until the end."""
        return self.total_s - self.used_s

    def slice_for(
        self, part: str, rounds: int, starts: int, share: float | None = None
    ) -> Slice | None:
        """
        Return how long each of *rounds* may take.

        :param part: one of :data:`PARTS`, str.
        :param rounds: of all settings together, int.
        :param starts: of servers, int.
        :param share: of the time that is left, float; None: that of the part.
        :returns: None: there is too little time.
        """
        share = PARTS[part] if share is None else share
        each_s = (self.left_s * share - starts * self.start_s) / rounds - self.end_s
        if each_s < WARM_UP_S + SECONDS_S:
            return None
        # A third of it is the warm-up.
        warm_up_s = min(max(WARM_UP_S, each_s / 3), MAX_WARM_UP_S)
        return Slice(warm_up_s, min(each_s - warm_up_s, MAX_SECONDS_S))

    def least_s(self, part: str, rounds: int) -> float:
        """Return the seconds that all of it has to have, for *rounds* of a part to be possible."""
        return self.used_s + rounds * (WARM_UP_S + SECONDS_S + self.end_s) / PARTS[part] + 1

    def fitting(
        self,
        part: str,
        settings: Sequence[float],
        kept: float | None = None,
        min_settings: int = 2,
    ) -> tuple[list[float], Slice] | None:
        """
        Return as many of *settings* as there is time for, each with a start a round.

        :param part: one of :data:`PARTS`, str.
        :param settings: in their order; the first and the last are kept, and others evenly.
        :param kept: one that is kept in any case, float; None: no other.
        :param min_settings: a sweep of fewer says nothing, int.
        :returns: them, and how long a round is; None: there is too little time.
        """

        def pick(count: int) -> list[float]:
            found = thinned(settings, count)
            if kept is not None and kept not in found:
                nearest = min(found, key=lambda each: abs(each - kept))
                found[found.index(nearest)] = kept
            return found

        for count in range(len(settings), min_settings - 1, -1):
            found = self.slice_for(part, ROUNDS * count, ROUNDS * count)
            if found is not None:
                return pick(count), found
        # Where servers start slowly, the first parts are worth more than the last ones.
        number = ROUNDS * min_settings
        if self.slice_for(part, number, number, LARGEST_SHARE) is None:
            return None
        return pick(min_settings), Slice(WARM_UP_S, SECONDS_S)


def thinned(settings: Sequence[float], count: int) -> list[float]:
    """Return *count* of *settings*, evenly spread, with the first and the last."""
    if count >= len(settings):
        return [*settings]
    if count == 1:
        return [settings[-1]]
    return [settings[round(each * (len(settings) - 1) / (count - 1))] for each in range(count)]
