"""
Apply the rule of fairness to the processes that share a slot table.

Everything here is a hint in the shared memory: nothing is locked, and nothing waits.
"""

from collections.abc import Iterator
from math import inf

from greenline.slots import fairness
from greenline.slots.file import HOLDS, PROMISED_UNTIL, SEATS_USED, WANTED, WANTS_UNTIL, SlotFile

WANT_S = 0.1


class ProcessRequest:
    """
    The request of another process.

    :param file: the file of the slot table.
    :param seat: the number of the process's row, int.
    """

    # Not stored in the file, so processes that hold equally many slots have equal rank. Each has
    # reserved slots, so none needs the last slot of another.
    since_s = inf

    def __init__(self, file: SlotFile, seat: int) -> None:
        self._file = file
        self._seat = seat

    @property
    def holds(self) -> int:
        return self._file.cells[HOLDS + self._seat]

    @property
    def promised_until_s(self) -> float:
        return self._file.times[PROMISED_UNTIL + self._seat]

    @promised_until_s.setter
    def promised_until_s(self, until: float) -> None:
        self._file.times[PROMISED_UNTIL + self._seat] = until


class Turns:
    """
    The hints of the processes that share a file, as one of them sees them.

    :param file: the file of the slot table.
    :param holds: the number of slots that this process holds for its pools, int. Default 0.
    """

    def __init__(self, file: SlotFile, holds: int = 0) -> None:
        self._file = file
        self.holds = 0
        self.count(holds)

    def __repr__(self) -> str:
        return f"<Turns seat={self._file.seat} holds={self.holds}>"

    def count(self, more: int) -> None:
        """Add *more*, which may be negative, to the number of slots that this process holds."""
        self.holds += more
        self._file.cells[HOLDS + self._file.seat] = self.holds

    def want(self, now: float) -> None:
        """Record that this process waits for a slot, from *now* (seconds) on for ``WANT_S``."""
        file = self._file
        # A request ends by itself unless it is renewed: a process that died or was stopped requests
        # nothing.
        file.times[WANTS_UNTIL + file.seat] = now + WANT_S
        # Two processes may write this at once and lose a store: the next request repairs it.
        if file.cells[SEATS_USED] <= file.seat:
            file.cells[SEATS_USED] = file.seat + 1
        # When the latest request of any process ends, so that is_calm() reads one value only.
        file.times[WANTED] = now + WANT_S

    def end_want(self) -> None:
        """End the request of this process, which has got a slot; it may request another one."""
        file = self._file
        file.times[WANTS_UNTIL + file.seat] = file.times[PROMISED_UNTIL + file.seat] = 0.0

    def is_calm(self, now: float) -> bool:
        """Return whether no process waits; cheap enough for every request."""
        return self._file.times[WANTED] <= now

    def wanting(self, now: float) -> Iterator[ProcessRequest]:
        """Yield the request of each other process that waits."""
        file = self._file
        if not fairness.lasts(file.times[WANTED], now, WANT_S):
            return
        behind = WANTS_UNTIL + file.cells[SEATS_USED]
        for seat, until in enumerate(file.times[WANTS_UNTIL:behind].tolist()):
            if fairness.lasts(until, now, WANT_S) and seat != file.seat:
                yield ProcessRequest(file, seat)

    def is_anothers(self, now: float) -> bool:
        """Return whether a free slot is for another process, which waits and holds fewer."""
        return fairness.is_anothers(self.holds, inf, self.wanting(now))

    def promise(self, now: float) -> bool:
        """
        Return whether this process should give a slot to another one; if so, reserve it for that
        one.
        """
        return fairness.promise(self.holds, inf, self.wanting(now), now)
