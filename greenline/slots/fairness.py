"""
Decide which process of a host, or which pool of a process, is next for a slot: one rule for both.

The waiting processes, or pools, end up with equal numbers of slots, give or take one; where there
are fewer slots than pools, the pools take turns.
"""

from collections.abc import Iterable
from typing import Protocol

TURN_S = RESERVE_S = 0.1


class Request(Protocol):
    """
    The request of a process or a pool that waits for a slot.

    - ``holds``: the number of slots that it holds.
    - ``since_s``: when it began to wait, or took its last slot if that was later; infinite:
      unknown.
    - ``reserved_until_s``: until when a slot is reserved for it.
    """

    @property
    def holds(self) -> int: ...

    @property
    def since_s(self) -> float: ...

    reserved_until_s: float


def is_anothers(holds: int, since_s: float, requests: Iterable[Request]) -> bool:
    """
    Return whether a free slot is due to one of *requests* and not to the caller.

    :param holds: the number of slots that this one holds, int.
    :param since_s: since when it waits, float; infinite: it does not wait, or it is unknown.
    :param requests: the requests of the others.
    """
    # The one with the fewest slots is first; of equals the one that waits longest.
    return any((one.holds, one.since_s) < (holds, since_s) for one in requests)


def reserve(holds: int, took_s: float, requests: Iterable[Request], now: float) -> bool:
    """
    Return whether to give a slot to another one; if so, reserve it for that one.

    :param holds: the number of slots that this one holds, int.
    :param took_s: when it got its last slot, float.
    :param requests: the requests of the others.
    :param now: the time in seconds, float.
    """
    for one in requests:
        # Reserve one slot at a time for each request: the slot reserved before is still on its way.
        # A reservation ends when its slot is taken, or after RESERVE_S.
        if lasts(one.reserved_until_s, now, RESERVE_S):
            continue
        # A waiter without a slot is given even the last slot of another one, but not before TURN_S
        # after it began to wait and TURN_S after the other one took its last slot: a slot that is
        # passed on at once is of no use to either.
        is_starving = one.holds == 0 and now >= max(one.since_s, took_s) + TURN_S
        # A difference of one is left as it is: a slot would go back and forth.
        if one.holds + 1 < holds or is_starving:
            one.reserved_until_s = now + RESERVE_S
            return True
    return False


def lasts(until: float, now: float, at_most_s: float) -> bool:
    """
    Return whether *until* is in the future, but not so far that it was written before the last
    boot.
    """
    return now < until <= now + 2 * at_most_s
