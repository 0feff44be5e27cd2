"""Find how many connection slots a server has for a worker. Arithmetic only, without a clock."""

from math import inf

from greenline.admission.load import Load

STEADY_S = 0.2  # the number of refused requests must stay the same for so long,
SLACK = 0.1  # within this share
HOLD_S, MAX_HOLD_S = 5.0, 60.0  # before a failed limit is tried again; doubled each time
STEP, STEP_S = 0.1, 5.0  # share by which the limit then rises, and the time of a step


class ConnectionSlots:
    """
    Estimate the connection slots that a server has for this worker, from its refusals.

    A request whose connection is refused cannot queue at the server, and might wait for ever while
    others use the slots. So no more requests may be in progress than there are slots.
    """

    def __init__(self) -> None:
        self._found = inf
        self._until_s, self._hold_s = -inf, HOLD_S  # until a higher limit is tried
        self._starved, self._since_s = 0, 0.0  # about so many requests are refused since then
        self._served = 0.0  # the highest number of requests not refused since then

    def highest(self, now: float) -> float:
        """Return the highest limit that may be set at *now*, seconds of the clock."""
        if now < self._until_s:
            return self._found
        if now >= self._until_s + MAX_HOLD_S:
            return inf
        # In small steps: each request beyond the slots has to wait.
        steps = 1 + (now - self._until_s) // STEP_S
        return self._found + steps * max(self._found * STEP, 1.0)

    def observe(self, load: Load, limit: float, now: float) -> bool:
        """
        Note the present state of the requests.

        :param load: the state.
        :param limit: the present limit, float.
        :param now: seconds of the clock, float.
        :returns: whether *limit* is too high.
        """
        if not load.starved:
            self._starved = 0
            return False
        # A spare handler may hold a slot. One without a connection is ended soon, and not counted.
        served = float(load.in_progress + load.spare - load.starved)
        # While the number changes, slots become free or more requests need one: no measurement.
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
