"""greenline.hub.nesting: admission of greenlets that need several connections at a time."""

import weakref
from typing import Any

import gevent
import pytest

from greenline.errors import PoolTimeout
from greenline.hub.nesting import NESTING_CHECKOUTS, NestedCheckouts

LIMIT_S = 10.0


class Holder:
    """What a greenlet of the worker is for the admission."""


class Pool:
    """So many connections, and holders that take several, one after the other."""

    def __init__(self, size: int) -> None:
        self.size, self.max_taken = size, 0
        self.nesting = NestedCheckouts(lambda: size)

    def hold(self, count: int) -> bool:
        """Take *count* connections, hold them together, and give them back."""
        me = Holder()
        holder, held = weakref.ref(me), 0
        try:
            for _ in range(count):
                assert self.nesting.acquire(holder, LIMIT_S)
                held += 1
                self.max_taken = max(self.max_taken, self.nesting._taken)
                gevent.sleep(0.001)
            return True
        except PoolTimeout:
            return False
        finally:
            for _ in range(held):
                self.nesting.release(holder)

    def at_once(self, *counts: int) -> list[Any]:
        running = [gevent.spawn(self.hold, count) for count in counts]
        gevent.joinall(running, timeout=LIMIT_S, raise_error=True)
        return [each.value for each in running]


@pytest.mark.parametrize(("size", "depth"), [(2, 2), (3, 2), (4, 3), (5, 4), (9, 3)])
def test_all_of_any_depth_end(size: int, depth: int) -> None:
    """Once it is known how many a request needs at a time, none waits for ever, and none fails."""
    pool = Pool(size)
    pool.nesting.note_needed(depth)
    assert pool.at_once(*[1 + number % depth for number in range(60)]) == [True] * 60
    assert pool.max_taken <= size
    assert (pool.nesting._taken, pool.nesting._held) == (0, {})


def test_a_deeper_one_than_before_may_fail_once() -> None:
    """All are held by greenlets that wait: the last of them gets an error, and the others end."""
    pool = Pool(4)
    pool.at_once(*[1] * NESTING_CHECKOUTS * 4)
    assert pool.at_once(*[1] * 8) == [True] * 8
    assert pool.max_taken == 4  # nothing is reserved any more
    found = pool.at_once(*[2] * 20)
    assert found.count(False) == 1
    assert pool.at_once(*[2] * 20) == [True] * 20
    pool.at_once(*[3] * 20)
    assert pool.at_once(*[3] * 20) == [True] * 20


def test_a_large_pool_always_has_one_for_a_second_checkout() -> None:
    """The others may wait in the server for what a greenlet has locked that needs another one."""
    pool = Pool(15)
    pool.at_once(*[1] * NESTING_CHECKOUTS * 15 * 2)
    holders = [Holder() for _ in range(15)]
    admitted = [pool.nesting.acquire_now(weakref.ref(each)) for each in holders]
    assert admitted == [True] * 14 + [False]
    assert pool.nesting.acquire_now(weakref.ref(holders[0]))


def test_one_that_may_be_exceeded_reserves_none_and_has_one_more() -> None:
    """For the first nested checkout of those that all others may wait for, and for no other."""
    nesting = NestedCheckouts(lambda: 15, may_be_exceeded=True)
    holders = [Holder() for _ in range(16)]
    me, *others = map(weakref.ref, holders)
    for _ in range(NESTING_CHECKOUTS * 15):
        assert nesting.acquire(others[0], LIMIT_S)
        nesting.release(others[0])
    assert [nesting.acquire_now(each) for each in (me, *others)] == [True] * 15 + [False]
    assert nesting.acquire_now(me)
    assert nesting.is_exceeded_by(me)
    assert not nesting.acquire_now(others[0])
    for _ in range(2):
        nesting.release(me)
    assert not nesting.acquire_now(me)  # one is reserved from now on
    assert nesting.acquire_now(others[0])
    assert not nesting.is_exceeded_by(others[0])
    # A deeper one, for which too few are reserved.
    assert nesting.acquire_now(others[0])
    assert nesting.is_exceeded_by(others[0])
    assert not nesting.acquire_now(others[1])


def test_a_connection_that_none_gives_back_is_left_out() -> None:
    """One that a greenlet keeps: the others are admitted as to a smaller pool."""
    pool = Pool(3)
    pool.at_once(*[1] * NESTING_CHECKOUTS * 3)
    pool.nesting.others = 1
    pool.nesting.note_needed(2)
    first, second = Holder(), Holder()
    assert pool.nesting.acquire_now(weakref.ref(first))
    assert not pool.nesting.acquire_now(weakref.ref(second))
    assert pool.nesting.acquire_now(weakref.ref(first))


def test_one_that_no_process_is_guaranteed_is_borrowed_where_all_others_are_in_use() -> None:
    """The host may have it: the greenlet that gets it counts, and comes to its end."""
    nesting = NestedCheckouts(lambda: 3, lambda: 2)
    first, second = Holder(), Holder()
    assert not nesting.borrow(weakref.ref(first))
    for each in (first, second):
        nesting.count(weakref.ref(each))
    with pytest.raises(PoolTimeout):
        waiting = gevent.spawn(nesting.acquire, weakref.ref(second), LIMIT_S)
        gevent.sleep(0)
        nesting.acquire(weakref.ref(first), LIMIT_S)
    assert nesting.borrow(weakref.ref(first))
    for _ in range(2):
        nesting.release(weakref.ref(first))
    assert waiting.get(timeout=LIMIT_S)


def test_a_holder_is_admitted_before_a_first_checkout() -> None:
    """What comes back goes to one that others wait for, however long a new one has waited."""
    pool = Pool(3)
    pool.at_once(*[1] * NESTING_CHECKOUTS * 3)
    pool.nesting.note_needed(2)
    holders = [Holder() for _ in range(3)]
    first, second, new = map(weakref.ref, holders)
    for each in (first, first, second):
        pool.nesting.count(each)
    order: list[str] = []

    def wait(me: Any, name: str) -> None:
        assert pool.nesting.acquire(me, LIMIT_S)
        order.append(name)

    running = [gevent.spawn(wait, new, "new"), gevent.spawn(wait, second, "second")]
    gevent.sleep(0)
    pool.nesting.release(first)
    gevent.sleep(0)
    assert order == ["second"]
    pool.nesting.release(first)
    pool.nesting.release(second)
    gevent.joinall(running, timeout=LIMIT_S, raise_error=True)
    assert order == ["second", "new"]


def test_one_that_needs_more_than_there_are_is_left_to_the_pool() -> None:
    """Alone it is admitted; the pool's own timeout ends its wait."""
    pool = Pool(2)
    assert pool.at_once(3) == [True]


def test_waiting_ones_come_in_their_order() -> None:
    """Those with a connection come first."""
    pool = Pool(1)
    order: list[int] = []

    def hold(number: int) -> None:
        pool.hold(1)
        order.append(number)

    gevent.joinall([gevent.spawn(hold, number) for number in range(10)], timeout=LIMIT_S)
    assert order == list(range(10))
