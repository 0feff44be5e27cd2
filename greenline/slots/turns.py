"""
Whose turn it is to take a slot, and who should give one: no locks, no waiting, hints only.

1. Each process writes at its seat how many slots it holds for its pool, and until when it wants
   one: a want that is not renewed ends by itself, so a dead or a stopped process wants nothing.
2. A free slot goes to the waiting process that holds the fewest. Who holds at least two more than a
   waiting one gives one. So all come within one of each other and stay there: with a difference of
   one nobody gives.
3. One slot is given for one need at a time. A promise says that it is on its way; it ends when the
   waiting one has taken a slot, or by itself.
4. The header has the latest want of all, so that one look is enough while nobody waits.
"""

from collections.abc import Iterator

from greenline.slots.file import HOLDS, PROMISED_UNTIL, SEATS_USED, WANTED, WANTS_UNTIL, SlotFile

WANT_S = 0.1
PROMISE_S = 0.1


class Turns:
    """The turns of the processes that share *file*, seen by one of them; times are its clock's."""

    def __init__(self, file: SlotFile, holds: int = 0) -> None:
        self._file = file
        self.holds = 0
        self.count(holds)

    def __repr__(self) -> str:
        return f"<Turns seat={self._file.seat} holds={self.holds}>"

    def count(self, more: int) -> None:
        """Say that this process holds *more* slots than before."""
        self.holds += more
        self._file.cells[HOLDS + self._file.seat] = self.holds

    def want(self, now: float) -> None:
        """Say that this process waits."""
        file = self._file
        file.times[WANTS_UNTIL + file.seat] = now + WANT_S
        if file.cells[SEATS_USED] <= file.seat:  # two may write at once: the next want repairs it
            file.cells[SEATS_USED] = file.seat + 1
        file.times[WANTED] = now + WANT_S

    def end_want(self) -> None:
        """Say that this process has got a slot; if it still waits it says so again."""
        file = self._file
        file.times[WANTS_UNTIL + file.seat] = file.times[PROMISED_UNTIL + file.seat] = 0.0

    def is_calm(self, now: float) -> bool:
        """Return whether nobody waits: one look, for those who ask at each request."""
        return self._file.times[WANTED] <= now

    def wanting(self, now: float) -> Iterator[tuple[int, int]]:
        """Yield the seat of each other process that waits, and how many slots it holds."""
        file = self._file
        if not _lasts(file.times[WANTED], now, WANT_S):
            return
        behind = WANTS_UNTIL + file.cells[SEATS_USED]
        for seat, until in enumerate(file.times[WANTS_UNTIL:behind].tolist()):
            if _lasts(until, now, WANT_S) and seat != file.seat:
                yield seat, file.cells[HOLDS + seat]

    def is_anothers(self, now: float) -> bool:
        """Return whether a free slot is for a process that waits and holds fewer."""
        return any(holds < self.holds for _, holds in self.wanting(now))

    def promise(self, now: float) -> bool:
        """Return whether this process should give one to another, and then say that it does."""
        for seat, holds in self.wanting(now):
            cell = PROMISED_UNTIL + seat
            if holds + 1 < self.holds and not _lasts(self._file.times[cell], now, PROMISE_S):
                self._file.times[cell] = now + PROMISE_S
                return True
        return False


def _lasts(until: float, now: float, at_most_s: float) -> bool:
    """Return whether *until* is to come; a time far off is one of before the last boot."""
    return now < until <= now + 2 * at_most_s
