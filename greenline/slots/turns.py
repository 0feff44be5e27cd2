"""
Decide which process may take a slot, and which one should give one.

All of it are hints in the shared memory, without locks and without waiting. The processes come
within one slot of each other and stay there.
"""

from collections.abc import Iterator

from greenline.slots.file import HOLDS, PROMISED_UNTIL, SEATS_USED, WANTED, WANTS_UNTIL, SlotFile

WANT_S = 0.1
PROMISE_S = 0.1


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
        # The latest request of all processes: is_calm() then needs one look only.
        file.times[WANTED] = now + WANT_S

    def end_want(self) -> None:
        """End the request of this process, which has got a slot; it may request another one."""
        file = self._file
        file.times[WANTS_UNTIL + file.seat] = file.times[PROMISED_UNTIL + file.seat] = 0.0

    def is_calm(self, now: float) -> bool:
        """Return whether no process waits; cheap enough for every request."""
        return self._file.times[WANTED] <= now

    def wanting(self, now: float) -> Iterator[tuple[int, int]]:
        """
        Yield, for each other process that waits, its row and the number of slots that it holds.
        """
        file = self._file
        if not _lasts(file.times[WANTED], now, WANT_S):
            return
        behind = WANTS_UNTIL + file.cells[SEATS_USED]
        for seat, until in enumerate(file.times[WANTS_UNTIL:behind].tolist()):
            if _lasts(until, now, WANT_S) and seat != file.seat:
                yield seat, file.cells[HOLDS + seat]

    def is_anothers(self, now: float) -> bool:
        """Return whether a free slot is for another process, which waits and holds fewer."""
        return any(holds < self.holds for _, holds in self.wanting(now))

    def promise(self, now: float) -> bool:
        """
        Return whether this process should give a slot to another one; if so, reserve it for that
        one.
        """
        for seat, holds in self.wanting(now):
            # The reservation says that a slot is on its way, so that others do not give one for the
            # same request. It ends when the waiting process has taken a slot, or by itself.
            cell = PROMISED_UNTIL + seat
            # With a difference of one no process gives: the slot would go back and forth.
            if holds + 1 < self.holds and not _lasts(self._file.times[cell], now, PROMISE_S):
                self._file.times[cell] = now + PROMISE_S
                return True
        return False


def _lasts(until: float, now: float, at_most_s: float) -> bool:
    """Return whether *until* lies ahead, and not so far that it is of before the last boot."""
    return now < until <= now + 2 * at_most_s
