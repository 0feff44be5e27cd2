"""
Decide which pool of one process is next, when several pools share the process's slots.

The slot table sees processes only; :mod:`greenline.slots.turns` has the rules between those.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic

TURN_S = PROMISE_S = 0.1


class Sharers:
    """
    The pools of one process.

    :param clock: returns the time in seconds. Default ``time.monotonic``.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.waiting: dict[Sharer, float] = {}  # the time of its last slot, or of its wait

    def join(self) -> "Sharer":
        """Add a pool and return its part."""
        return Sharer(self)


class Sharer:
    """
    One pool's part: the number of slots that it holds, and whether it waits for one.

    :param sharers: the pools of the process.
    """

    def __init__(self, sharers: Sharers) -> None:
        self._sharers = sharers
        self._waits = 0
        self._promised_until = 0.0
        self._took_s = -inf  # the time of its last slot
        self.holds = 0

    def __repr__(self) -> str:
        return f"<Sharer holds={self.holds} waits={self._waits}>"

    def take(self) -> None:
        """Count a slot that this pool has acquired."""
        self.holds += 1
        self._promised_until = 0.0
        self._took_s = self._sharers.clock()
        # If it still waits, it moves behind the pools that hold as many.
        if self._waits:
            self._sharers.waiting[self] = self._took_s

    def give(self) -> None:
        """Count a slot that this pool has released."""
        self.holds -= 1

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Mark the pool as waiting for the length of the block; blocks may overlap."""
        self._waits += 1
        self._sharers.waiting.setdefault(self, self._sharers.clock())
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                del self._sharers.waiting[self]

    def is_anothers(self) -> bool:
        """Return whether a free slot is for another waiting pool."""
        # The waiting pool with the fewest slots is first; of equals the one that waits longest.
        waiting = self._sharers.waiting
        mine = self.holds, waiting.get(self, inf)
        return any((one.holds, since) < mine for one, since in waiting.items())

    def is_wanted(self) -> bool:
        """Return whether another pool waits that should get an idle slot of this one."""
        # The last slot of this pool goes only to a pool that holds none.
        others = (one for one in self._sharers.waiting if one is not self)
        return any(self.holds > 1 or one.holds == 0 for one in others)

    def promise(self) -> bool:
        """Return whether to give a slot to another pool; if so, reserve it for that one."""
        if not self._sharers.waiting:
            return False
        now = self._sharers.clock()
        for one, since in self._sharers.waiting.items():
            # One slot at a time for each waiting pool: another one is on its way already.
            if one is self or now < one._promised_until:
                continue
            # Where there are fewer slots than pools, the pools take turns of TURN_S: a pool that
            # holds none is given even the last slot of another. It waits TURN_S after its own last
            # slot, too, since a slot that is passed on at once is of no use to any of them.
            is_starving = one.holds == 0 and now >= max(since, self._took_s) + TURN_S
            # A difference of one is left as it is: a slot would go back and forth.
            if one.holds + 1 < self.holds or is_starving:
                one._promised_until = now + PROMISE_S
                return True
        return False
