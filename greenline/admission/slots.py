"""Find how many connection slots a server has for a worker. Arithmetic only, without a clock."""

from math import inf

from greenline.admission.load import Load

STEADY_S = 0.2  # for so long about as many are refused, within
SLACK = 0.1
HOLD_S, MAX_HOLD_S = 5.0, 60.0  # a limit that failed is tried again after that, doubled each time
STEP, STEP_S = 0.1, 5.0  # and raised by so much, each time after so long


class ConnectionSlots:
    """
    The connection slots that a server has for this worker, as far as its refusals show.

    A request whose connection is refused cannot queue for it at the server, so slots are not
    shared either: it might wait for ever while others use them. No request may be one too many.
    """

    def __init__(self) -> None:
        self._found = inf
        self._until_s, self._hold_s = -inf, HOLD_S  # until a higher limit is tried
        self._starved, self._since_s = 0, 0.0  # about so many are refused since then
        self._served = 0.0  # and at most so many were not

    def highest(self, now: float) -> float:
        """Return how high the limit may be."""
        if now < self._until_s:
            return self._found
        if now >= self._until_s + MAX_HOLD_S:
            return inf
        # By little at a time: each request beyond what there is has to wait.
        steps = 1 + (now - self._until_s) // STEP_S
        return self._found + steps * max(self._found * STEP, 1.0)

    def observe(self, load: Load, limit: float, now: float) -> bool:
        """Return whether *limit* is too high."""
        if not load.starved:
            self._starved = 0
            return False
        # A spare handler that has no connection is ended by and by, and not counted then.
        served = float(load.in_progress + load.spare - load.starved)
        # While their number changes, slots become free, or more requests ask for one.
        change = abs(load.starved - self._starved)
        if not self._starved or change > max(1.0, self._starved * SLACK):
            self._begin(load.starved, served, now)
        self._served = max(self._served, served)
        if now - self._since_s < STEADY_S:
            return False
        found = self._served
        self._begin(load.starved, served, now)
        if found >= (min(self._found, limit) if now < self._until_s else limit):
            return False
        if now >= self._until_s + MAX_HOLD_S:
            self._hold_s = HOLD_S
        self._found, self._until_s = found, now + self._hold_s
        self._hold_s = min(2 * self._hold_s, MAX_HOLD_S)
        return True

    def _begin(self, starved: int, served: float, now: float) -> None:
        self._starved, self._served, self._since_s = starved, served, now
