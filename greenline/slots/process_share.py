"""
Apply the rule of fairness to the processes that share a slot table.

Everything here is a hint in the shared memory: nothing is locked, and nothing waits.
"""

from collections.abc import Iterator
from math import inf

from greenline.slots import fairness
from greenline.slots.file import (
    HOLDS,
    LAST_REQUEST_UNTIL,
    REQUESTED_UNTIL,
    RESERVED_UNTIL,
    ROWS_USED,
    SlotFile,
)

REQUEST_S = 0.1


class ProcessRequest:
    """
    The request of another process.

    :param file: the file of the slot table.
    :param row: the number of the process's row, int.
    """

    # Not stored in the file, so processes that hold equally many slots have equal rank. Each has
    # reserved slots, so none needs the last slot of another.
    since_s = inf

    def __init__(self, file: SlotFile, row: int) -> None:
        self._file = file
        self._row = row

    @property
    def holds(self) -> int:
        return self._file.cells[HOLDS + self._row]

    @property
    def reserved_until_s(self) -> float:
        return self._file.times[RESERVED_UNTIL + self._row]

    @reserved_until_s.setter
    def reserved_until_s(self, until: float) -> None:
        self._file.times[RESERVED_UNTIL + self._row] = until


class ProcessShare:
    """
    The fair share of one process: what it holds and requests, and what the others request.

    :param file: the file of the slot table.
    :param holds: the number of slots that this process holds for its pools, int. Default 0.
    """

    def __init__(self, file: SlotFile, holds: int = 0) -> None:
        self._file = file
        self.holds = 0
        self.count(holds)

    def __repr__(self) -> str:
        return f"<ProcessShare row={self._file.row} holds={self.holds}>"

    def count(self, more: int) -> None:
        """Add *more*, which may be negative, to the number of slots that this process holds."""
        self.holds += more
        self._file.cells[HOLDS + self._file.row] = self.holds

    def request(self, now: float) -> None:
        """Record that this process waits for a slot, from *now* (seconds) on for ``REQUEST_S``."""
        file = self._file
        # A request ends by itself unless it is renewed: a process that died or was stopped requests
        # nothing.
        file.times[REQUESTED_UNTIL + file.row] = now + REQUEST_S
        # Two processes may write this at once and lose a store: the next request repairs it.
        if file.cells[ROWS_USED] <= file.row:
            file.cells[ROWS_USED] = file.row + 1
        # When the latest request of any process ends, so that has_requests() reads one value only.
        file.times[LAST_REQUEST_UNTIL] = now + REQUEST_S

    def end_request(self) -> None:
        """End the request of this process, which has got a slot; it may request another one."""
        file = self._file
        file.times[REQUESTED_UNTIL + file.row] = file.times[RESERVED_UNTIL + file.row] = 0.0

    def is_requesting(self, now: float) -> bool:
        """Return whether this process waits for a slot."""
        until = self._file.times[REQUESTED_UNTIL + self._file.row]
        return fairness.lasts(until, now, REQUEST_S)

    def has_requests(self, now: float) -> bool:
        """Return whether a process waits; cheap enough for every request."""
        return self._file.times[LAST_REQUEST_UNTIL] > now

    def requests(self, now: float) -> Iterator[ProcessRequest]:
        """Yield the request of each other process that waits."""
        file = self._file
        if not fairness.lasts(file.times[LAST_REQUEST_UNTIL], now, REQUEST_S):
            return
        behind = REQUESTED_UNTIL + file.cells[ROWS_USED]
        for row, until in enumerate(file.times[REQUESTED_UNTIL:behind].tolist()):
            if fairness.lasts(until, now, REQUEST_S) and row != file.row:
                yield ProcessRequest(file, row)

    def is_anothers(self, now: float) -> bool:
        """Return whether a free slot is for another process, which waits and holds fewer."""
        return fairness.is_anothers(self.holds, inf, self.requests(now))

    def reserve(self, now: float) -> bool:
        """
        Return whether this process should give a slot to another one; if so, reserve it for that
        one.
        """
        return fairness.reserve(self.holds, inf, self.requests(now), now)
