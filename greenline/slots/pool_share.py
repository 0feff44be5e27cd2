"""
Apply the rule of fairness to the pools of one process, which share the process's slots.

The slot table sees processes only: :mod:`greenline.slots.process_share`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic

from greenline.slots import fairness


class PoolShares:
    """
    The pools of one process.

    :param clock: returns the time in seconds. Default ``time.monotonic``.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.waiting: dict[PoolShare, None] = {}  # in the order in which they began to wait

    def join(self) -> "PoolShare":
        """Add a pool and return its share."""
        return PoolShare(self)


class PoolShare:
    """
    The fair share of one pool: the number of slots that it holds, and whether it waits for one.

    :param shares: the pools of the process.
    """

    def __init__(self, shares: PoolShares) -> None:
        self._shares = shares
        self._waits = 0
        self._took_s = -inf  # the time of its last slot
        self.holds = 0
        # When it began to wait, or took its last slot if that was later; infinite if it does not
        # wait.
        self.since_s = inf
        self.reserved_until_s = 0.0

    def __repr__(self) -> str:
        return f"<PoolShare holds={self.holds} waits={self._waits}>"

    def take(self) -> None:
        """Count a slot that this pool has acquired."""
        self.holds += 1
        self.reserved_until_s = 0.0
        self._took_s = self._shares.clock()
        # If it still waits, it moves behind the pools that hold as many.
        if self._waits:
            self.since_s = self._took_s

    def give(self) -> None:
        """Count a slot that this pool has released."""
        self.holds -= 1

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Mark the pool as waiting for the length of the block; blocks may overlap."""
        if not self._waits:
            self.since_s = self._shares.clock()
            self._shares.waiting[self] = None
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                self.since_s = inf
                del self._shares.waiting[self]

    def is_anothers(self) -> bool:
        """Return whether a free slot is for another waiting pool."""
        return fairness.is_anothers(self.holds, self.since_s, self._shares.waiting)

    def is_wanted(self) -> bool:
        """Return whether another pool waits that should get an idle slot of this one."""
        # The last slot of this pool goes only to a pool that holds none.
        return any(self.holds > 1 or one.holds == 0 for one in self._others())

    def reserve(self) -> bool:
        """Return whether to give a slot to another pool; if so, reserve it for that one."""
        if not self._shares.waiting:
            return False
        return fairness.reserve(self.holds, self._took_s, self._others(), self._shares.clock())

    def _others(self) -> "Iterator[PoolShare]":
        return (one for one in self._shares.waiting if one is not self)
