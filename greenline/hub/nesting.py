"""
Let checkouts of a pool nest without a deadlock.

A request that holds one connection and needs another one waits for other requests. If these do the
same, each of them waits until the pool's timeout. There are usually fewer threads than connections,
but not fewer greenlets. So a checkout is admitted only if afterwards the greenlets that hold
connections can all end one after the other, each with as many as any has needed at a time: the
banker's algorithm (Dijkstra). With two a request, that reserves the last connection
for greenlets that hold one.

First connections are given in the order of arrival. A pool whose checkouts have never nested ends
the reservation after some time, if it is small or may be exceeded. If checkouts nest later, or
deeper than before, all holders may wait for each other once: the first of them gets a connection
more than the pool has, if it may be exceeded; else this is found, and the last of them gets an
error.
"""

from collections import deque
from collections.abc import Callable, Set
from time import monotonic
from typing import Any

import gevent
from gevent.hub import Waiter

from greenline.errors import PoolTimeout
from greenline.hub import deadline
from greenline.hub.cooperate import wake
from greenline.hub.lock_waits import LockWait

# For so many checkouts for each connection, a greenlet is taken to need FIRST_DEPTH connections,
# and afterwards as many as any has needed at a time. A first deadlock is not always found: a holder
# may wait for a lock of another one, such as SQLAlchemy's at the first connect of an engine.
NESTING_CHECKOUTS, FIRST_DEPTH = 10, 3
# A pool of so many connections that may not be exceeded always has one for nested checkouts: all
# others may wait in the server for a row that a greenlet has locked which then needs another one.
ALWAYS_RESERVING = 15
ALL_WAIT = "each connection is held by a request that waits for another one"
ALL_BLOCKED = f"{ALL_WAIT}, or for a lock of this request"


class _Waiting:
    """A greenlet that waits for its admission."""

    def __init__(self, me: Any) -> None:
        self.me = me
        self.since_s = monotonic()
        self.is_admitted = False
        self.is_in_line = True
        self.waiter: Waiter[None] = Waiter()


class NestedCheckouts:
    """
    Decide which greenlet may take a connection.

    ``others`` is the number of connections that no greenlet will give back soon.

    :param capacity: returns the number of connections, int.
    :param guaranteed: returns how many of them no other process can take, int. Default: all.
    :param may_be_exceeded: whether there may be one connection more where a greenlet could not end
        without it, bool. Default False.
    """

    def __init__(
        self,
        capacity: Callable[[], int],
        guaranteed: Callable[[], int] | None = None,
        *,
        may_be_exceeded: bool = False,
    ) -> None:
        self.others = 0
        self._may_be_exceeded = may_be_exceeded
        self._limit = capacity
        self._guaranteed_limit = guaranteed or capacity
        self._taken = 0  # the connections that are counted for greenlets
        # By weak reference: a thread-local that is collected with its greenlet may end a checkout.
        self._held: dict[Any, int] = {}
        self._line: deque[_Waiting] = deque()  # for a first connection
        self._nested_line: deque[_Waiting] = deque()  # for another one
        self._checkouts = 0
        self._max_held = 1  # the most that a greenlet has needed at a time

    def stats(self) -> dict[str, int]:
        """Return how many greenlets wait for admission."""
        return {"waiting": len(self._line) + len(self._nested_line)}

    def acquire(
        self,
        me: Any,
        timeout_s: float,
        *,
        has_idle: Callable[[], bool] = bool,
        on_wait: Callable[[], object] = bool,
    ) -> bool:
        """
        Admit a greenlet to a checkout, and count the connection for it.

        :param me: a weak reference to the greenlet.
        :param timeout_s: seconds to wait for admission, float.
        :param has_idle: returns whether a connection may come back although its holder waits.
            Default: none does.
        :param on_wait: called before the greenlet waits. Default: does nothing.
        :returns: whether it may take a connection.
        :raises DeadlineExceeded: the request's deadline has passed.
        :raises PoolTimeout: each connection is held by a greenlet that waits for another one, or
            for a lock of this one.
        """
        self._checkouts += 1
        if self.acquire_now(me):
            return True
        is_nested = me in self._held
        if is_nested and self._is_stuck({me}):
            if self._taken < self._guaranteed():  # no one else can use it
                self.count(me)
                return True
            if not has_idle():
                raise PoolTimeout(ALL_WAIT)
        return self._wait(self._nested_line if is_nested else self._line, me, timeout_s, on_wait)

    def borrow(self, me: Any) -> bool:
        """
        Count a connection that is guaranteed to no process, if all others are in use.

        :param me: a weak reference to the greenlet, which releases it if it gets none.
        """
        if self._taken < self._guaranteed():
            return False
        self.count(me)
        return True

    def nested_since(self, time_s: float) -> set[Any]:
        """
        Return the greenlets that have waited for a nested checkout since *time_s*.

        :param time_s: seconds of ``monotonic()``, float.
        """
        return {each.me for each in self._nested_line if each.since_s <= time_s}

    def not_waiting(self) -> set[Any]:
        """Return the greenlets that hold connections and wait for none."""
        return self._held.keys() - {each.me for each in self._nested_line}

    def end_deadlock(self, waiting: Set[Any], blocked: Set[Any]) -> bool:
        """
        Let a nested checkout go on, or fail, if no holder can end otherwise.

        :param waiting: the greenlets that wait for a nested checkout, one of which may fail.
        :param blocked: the holders that wait for what these have locked.
        :returns: whether there was a deadlock.
        """
        held = [each for each in self._nested_line if each.me in waiting and each.me in self._held]
        if not held or not self._is_stuck(blocked):
            return False
        if self._taken < self._guaranteed():
            self._admit(self._nested_line, held[0])
        else:
            self._leave(self._nested_line, held[-1])
            wake(held[-1].waiter)
        return True

    def acquire_now(self, me: Any) -> bool:
        """
        Admit a greenlet without a wait; return whether it may take a connection.

        :param me: a weak reference to the greenlet.
        """
        if me in self._held:
            self.note_needed(self._held[me] + 1)
            if not self._is_safe(me):
                return False
        elif not self.may_begin(me):
            return False
        self.count(me)
        return True

    def note_needed(self, count: int) -> None:
        """Note that a greenlet needs *count* connections at a time."""
        self._max_held = max(self._max_held, count)

    def holds(self, me: Any) -> bool:
        """Return whether a connection is counted for a greenlet."""
        return me in self._held

    def waiting(self) -> int:
        """Return how many greenlets wait for admission."""
        return len(self._line) + len(self._nested_line)

    def may_begin(self, me: Any) -> bool:
        """Return whether a checkout of a greenlet may be admitted now, and do not count it."""
        return me in self._held or (not self._line and self._has_room())

    def is_exceeded_by(self, me: Any) -> bool:
        """Return whether a connection more is counted than there are, for a nested checkout."""
        is_nested = self._held.get(me, 0) > 1 and len(self._held) > 1
        return is_nested and self._taken > self._limit() - self.others

    def reuse(self, me: Any) -> bool:
        """
        Count a connection that was kept from an earlier checkout, when a greenlet uses it again.

        :param me: a weak reference to the greenlet.
        :returns: False if it must give the connection back, and wait.
        """
        self._checkouts += 1
        if me in self._held or self._is_reserving():
            return self.acquire_now(me)
        # While all checkouts may be first ones, none waits for a holder of one.
        self.count(me)
        return True

    def release(self, me: Any) -> None:
        """Count one connection of *me* less."""
        self._taken -= 1
        self._held[me] -= 1
        if not self._held[me]:
            del self._held[me]
        self.admit()

    def count(self, me: Any) -> None:
        """Count a connection for *me*, which has it already."""
        self._taken += 1
        self._held[me] = self._held.get(me, 0) + 1

    def admit(self) -> None:
        """Admit the greenlets for which there is room; call it when the capacity has grown."""
        for waiting in list(self._nested_line):
            if self._is_safe(waiting.me):
                self._admit(self._nested_line, waiting)
        while self._line and self._has_room():
            self._admit(self._line, self._line[0])

    def _admit(self, line: deque[_Waiting], waiting: _Waiting) -> None:
        self._leave(line, waiting)
        waiting.is_admitted = True
        # Now, so that no other greenlet takes the connection before it runs.
        self.count(waiting.me)
        wake(waiting.waiter)

    def _leave(self, line: deque[_Waiting], waiting: _Waiting) -> None:
        line.remove(waiting)
        waiting.is_in_line = False

    def _has_room(self) -> bool:
        if self._is_reserving():
            return self._is_safe(None)
        return self._taken < self._limit() - self.others

    def _guaranteed(self) -> int:
        return self._guaranteed_limit() - self.others

    def _is_reserving(self) -> bool:
        """Return whether connections are reserved for nested checkouts."""
        is_large = self._guaranteed_limit() >= ALWAYS_RESERVING and not self._may_be_exceeded
        return self._max_held > 1 or is_large or self._is_new()

    def _is_new(self) -> bool:
        return self._checkouts < NESTING_CHECKOUTS * self._guaranteed_limit()

    def _is_safe(self, me: Any) -> bool:
        """Return whether all holders can end if *me* (None: a new one) has one connection more."""
        if self._held.keys() <= {me}:
            return True  # the pool is its own, however small it is
        free = self._guaranteed() - self._taken - 1
        if self._can_end(free, me):
            return True
        # Checkouts nest that have not nested before: without it, it is not known that one can end.
        is_allowed = self._may_be_exceeded and me in self._held and free >= -1
        return is_allowed and not self._can_end(free + 1)

    def _can_end(self, free: int, *more: Any) -> bool:
        """Return whether all holders can end with *free* ones, if those of *more* have one more."""
        need = max(self._max_held, FIRST_DEPTH if self._is_new() else 2)
        if free < 0 or free >= need - 1:
            return free >= 0  # enough for any of them, and each that ends gives back more
        held = {**self._held, **{me: self._held.get(me, 0) + 1 for me in more}}
        for count in sorted(held.values(), reverse=True):  # who lacks least ends first
            if need - count > free:
                return False
            free += count
        return True

    def _is_stuck(self, blocked: Set[Any]) -> bool:
        """Return whether each holder is one of *blocked*, or waits for another connection."""
        return self.not_waiting() <= blocked

    def _wait(
        self, line: deque[_Waiting], me: Any, timeout_s: float, on_wait: Callable[[], object]
    ) -> bool:
        waiting = _Waiting(me)
        line.append(waiting)
        try:
            on_wait()
            with LockWait(), deadline.spending("pool"), gevent.Timeout(timeout_s, False):  # type: ignore[arg-type]
                deadline.wait_in(waiting.waiter.get)
        except BaseException:
            # It may have been admitted in the same moment: the connection goes to the next one.
            if waiting.is_admitted:
                self.release(me)
            raise
        else:
            if not (waiting.is_admitted or waiting.is_in_line):
                raise PoolTimeout(ALL_BLOCKED)
            return waiting.is_admitted
        finally:
            if waiting.is_in_line:
                line.remove(waiting)
