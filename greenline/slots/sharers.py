"""
Whose turn it is among the pools of one process, which share its part in the slot table.

The slot table sees processes; between the pools of one these rules hold:

1. A free slot is for the waiting pool that holds the fewest, of equals for the longest waiting.
2. Who holds at least two more than a waiting one gives one, for one need at a time.
3. Who waits and holds none is given one after ``TURN_S``, a last one too: where there are fewer
   slots than pools, these take turns of that length.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic

TURN_S = PROMISE_S = 0.1


class Sharers:
    """The pools of one process; times are *clock*'s."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.waiting: dict[Sharer, float] = {}  # since when

    def join(self) -> "Sharer":
        """Return a new pool's part."""
        return Sharer(self)


class Sharer:
    """One pool's part: it counts the slots that this one holds, and says when it waits."""

    def __init__(self, sharers: Sharers) -> None:
        self._sharers = sharers
        self._waits = 0
        self._promised_until = 0.0
        self._took_s = -inf  # when it got a slot last
        self.holds = 0

    def __repr__(self) -> str:
        return f"<Sharer holds={self.holds} waits={self._waits}>"

    def take(self) -> None:
        """Say that it has got a slot; if it still waits, it stands behind its equals."""
        self.holds += 1
        self._promised_until = 0.0
        self._took_s = self._sharers.clock()
        if self._waits:
            self._sharers.waiting[self] = self._took_s

    def give(self) -> None:
        """Say that it has one less."""
        self.holds -= 1

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Say that it waits as long as the block lasts, or any other of its blocks."""
        self._waits += 1
        self._sharers.waiting.setdefault(self, self._sharers.clock())
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                del self._sharers.waiting[self]

    def is_anothers(self) -> bool:
        """Return whether a free slot is for another one that waits."""
        waiting = self._sharers.waiting
        mine = self.holds, waiting.get(self, inf)
        return any((one.holds, since) < mine for one, since in waiting.items())

    def is_wanted(self) -> bool:
        """Return whether another waits who could use an idle one; the last if it has none."""
        others = (one for one in self._sharers.waiting if one is not self)
        return any(self.holds > 1 or one.holds == 0 for one in others)

    def promise(self) -> bool:
        """Return whether it should give a slot to another one, and then say that it does."""
        if not self._sharers.waiting:
            return False
        now = self._sharers.clock()
        for one, since in self._sharers.waiting.items():
            if one is self or now < one._promised_until:
                continue
            # Its own turn lasts as long: a slot that went on at once would serve nobody.
            is_starving = one.holds == 0 and now >= max(since, self._took_s) + TURN_S
            if one.holds + 1 < self.holds or is_starving:
                one._promised_until = now + PROMISE_S
                return True
        return False
