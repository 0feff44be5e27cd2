"""Whose turn it is among the pools of one process, with a clock of the test's own."""

import pytest

from greenline.slots.fairness import RESERVE_S, TURN_S
from greenline.slots.pool_share import PoolShare, PoolShares
from tests.helpers.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shares(clock: Clock) -> PoolShares:
    return PoolShares(clock)


def holding(shares: PoolShares, number: int) -> PoolShare:
    """Return a pool's share with so many slots."""
    one = shares.join()
    for _ in range(number):
        one.take()
    return one


@pytest.mark.parametrize(
    ("mine", "others", "gives"),
    [(3, 1, True), (2, 0, True), (2, 1, False), (3, 3, False), (1, 2, False)],
)
def test_who_holds_two_more_gives_one(
    shares: PoolShares, mine: int, others: int, gives: bool
) -> None:
    """As between processes: with a difference of one none is released."""
    me, other = holding(shares, mine), holding(shares, others)
    assert not me.reserve()
    with other.wait():
        assert me.reserve() is gives
    assert not me.reserve()


def test_one_is_given_for_one_need(shares: PoolShares, clock: Clock) -> None:
    """Until it has come, or for the time of a reservation."""
    me, another, other = holding(shares, 9), holding(shares, 9), holding(shares, 0)
    with other.wait():
        assert me.reserve()
        assert not another.reserve()
        other.take()
        assert another.reserve()
        clock.now += RESERVE_S
        assert me.reserve()


def test_a_last_one_is_given_when_it_was_a_turn(shares: PoolShares, clock: Clock) -> None:
    """To one who has none; it takes its turn, too."""
    me, other = holding(shares, 1), holding(shares, 0)
    with other.wait():
        assert not me.reserve()
        clock.now += TURN_S
        assert me.reserve()


def test_a_turn_is_as_long_however_long_another_waits(shares: PoolShares, clock: Clock) -> None:
    """A slot that was given on as soon as it came would serve no request."""
    me, other = holding(shares, 0), holding(shares, 0)
    with other.wait():
        clock.now += TURN_S
        me.take()
        assert not me.reserve()
        clock.now += TURN_S
        assert me.reserve()


def test_a_free_slot_is_for_who_holds_the_fewest(shares: PoolShares, clock: Clock) -> None:
    """Of equals for the longest waiting, and one that does not wait is behind them."""
    many, few, late = holding(shares, 2), holding(shares, 1), holding(shares, 1)
    assert not many.is_anothers()
    with few.wait():
        clock.now += 1
        with many.wait(), late.wait():
            assert [one.is_anothers() for one in (many, few, late)] == [True, False, True]
            few.take()
            assert [one.is_anothers() for one in (many, few, late)] == [True, True, False]
        late.give()
        few.give()
        few.give()
        assert late.is_anothers()


def test_an_idle_one_is_for_who_waits_and_the_last_for_who_has_none(shares: PoolShares) -> None:
    """A pool keeps its last idle one while another pool has some."""
    me, other = holding(shares, 2), holding(shares, 5)
    assert not me.is_wanted()
    with other.wait():
        assert me.is_wanted()
        me.give()
        assert not me.is_wanted()
    with me.wait():
        assert not me.is_wanted()
    with shares.join().wait():
        assert me.is_wanted()


def test_several_waits_of_one_are_one(shares: PoolShares) -> None:
    """It waits until the last of them is over."""
    me, other = holding(shares, 5), holding(shares, 0)
    with other.wait():
        with other.wait():
            pass
        assert me.reserve()
    assert shares.waiting == {}
