"""greenline.admission.slots as arithmetic."""

from math import inf

from greenline.admission.load import Load
from greenline.admission.slots import HOLD_S, MAX_HOLD_S, ConnectionSlots

OBSERVE_S = 0.02
QUIET = Load(50, 5)


class Observed:
    """Slots that are looked at every few hundredths of a second; *limit* is held to them."""

    def __init__(self, limit: float) -> None:
        self.slots = ConnectionSlots()
        self.limit = limit
        self.now = 0.0
        self.lowered = 0

    def look(self, for_s: float, load: Load) -> None:
        for _ in range(round(for_s / OBSERVE_S)):
            self.now += OBSERVE_S
            if self.slots.observe(load, self.limit, self.now):
                self.lowered += 1
                self.limit = self.slots.highest(self.now)


def test_the_limit_is_what_the_server_has() -> None:
    """Ten of sixty are refused: fifty are not."""
    observed = Observed(100)
    observed.look(0.5, Load(60, 5, 10, 10))
    assert observed.limit == 50


def test_a_spare_handler_may_hold_the_slot_that_another_one_asks_for() -> None:
    """Ten are refused while thirty handlers are idle: together there are ninety slots."""
    observed = Observed(100)
    observed.look(0.5, Load(70, 5, 10, 10, spare=30))
    assert observed.limit == 90


def test_while_fewer_and_fewer_are_refused_nothing_is_found() -> None:
    """They get the slots that others have freed."""
    observed = Observed(100)
    for starved in range(40, 0, -4):
        observed.look(0.1, Load(100, 5, starved, starved))
    assert observed.limit == 100


def test_a_single_refusal_counts_when_it_lasts() -> None:
    """The backend of a closed connection lingers for a moment."""
    observed = Observed(20)
    for _ in range(20):
        observed.look(0.1, Load(20, 5, 1, 1))
        observed.look(0.1, QUIET)
    assert observed.limit == 20
    observed.look(0.5, Load(20, 5, 1, 1))
    assert observed.limit == 19


def test_what_was_served_before_does_not_hide_what_is_refused_now() -> None:
    """Seventy-nine were served, later forty: the one that is refused lowers the limit again."""
    observed = Observed(80)
    observed.look(0.5, Load(80, 5, 1, 1))
    assert observed.limit == 79
    observed.look(0.5, Load(41, 5, 1, 1))
    assert observed.limit == 40


def test_fewer_slots_than_the_lowest_limit_are_found_once() -> None:
    """The limiter admits four whatever is found: two are held for some seconds, not for ever."""
    observed = Observed(4)
    for _ in range(50):
        observed.limit = 4  # the lowest
        observed.look(0.1, Load(4, 5, 2, 2))
    assert observed.lowered <= 2


def test_after_the_hold_the_limit_may_rise_by_little() -> None:
    """By a tenth each few seconds: each request beyond what there is waits for a slot."""
    observed = Observed(100)
    observed.look(0.5, Load(60, 5, 10, 10))
    highest = observed.slots.highest
    assert highest(observed.now + HOLD_S - 1) == 50
    assert highest(observed.now + HOLD_S + 1) == 55
    assert 55 < highest(observed.now + 4 * HOLD_S) < 80
    assert highest(observed.now + HOLD_S + MAX_HOLD_S + 1) == inf
