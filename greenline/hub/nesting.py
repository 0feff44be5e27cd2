"""
Let checkouts of a pool nest without a deadlock.

A request that holds one connection and needs another one waits for other requests. If these do the
same, each of them waits until the pool's timeout. There are usually fewer threads than connections,
but not fewer greenlets. So a greenlet without a connection gets its first one only while the pool
has two left: the last one is reserved for greenlets that hold a connection. With two connections a
request, at least one request can always proceed.

First connections are given in the order of arrival. A pool whose checkouts have never nested ends
the reservation after some time. If checkouts nest later, the first deadlock is found, one of its
greenlets gets an error, and the reservation begins anew.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from gevent.hub import Waiter

from greenline.errors import PoolTimeout
from greenline.hub import deadline
from greenline.hub.cooperate import wake
from greenline.hub.lock_waits import LockWait

# After so many checkouts for each connection, none of them nested, the checkouts of a pool are
# taken not to nest. Until then one connection is reserved for nested checkouts.
NESTING_CHECKOUTS = 10


class NestedCheckouts:
    """
    Decide which greenlet may take a connection.

    :param capacity: returns the number of connections, int.
    :param guaranteed: returns how many of them no other process can take, int. Default: all.
    """

    def __init__(
        self, capacity: Callable[[], int], guaranteed: Callable[[], int] | None = None
    ) -> None:
        self.capacity = capacity
        self._guaranteed = guaranteed or capacity
        # The connections in use, and those for which a holder of one waits: nested checkouts come
        # before first ones.
        self._taken = 0
        # By weak reference: a thread-local that is collected with its greenlet may end a checkout.
        self._held: dict[Any, int] = {}
        self._blocked: set[Any] = set()  # holders of a connection that wait for another one
        self._line: deque[tuple[Any, Waiter[None]]] = deque()
        self._checkouts = 0
        self._is_nested = False

    def acquire(self, me: Any, timeout_s: float) -> bool:
        """
        Admit a greenlet to a checkout, and count the connection for it.

        :param me: a weak reference to the greenlet.
        :param timeout_s: seconds to wait for a first connection, float.
        :returns: whether it may take a connection.
        :raises DeadlineExceeded: the request's deadline has passed.
        """
        self._checkouts += 1
        return self.acquire_now(me) or self._wait(me, timeout_s)

    def acquire_now(self, me: Any) -> bool:
        """
        Admit a greenlet without a wait; return whether it may take a connection.

        :param me: a weak reference to the greenlet.
        """
        # A nested checkout does not wait here: it would keep a connection that others wait for.
        if me in self._held:
            self._is_nested = True
        elif self._line or not self._has_room():
            return False
        self._count(me)
        return True

    def note_nested(self) -> None:
        """Note that a greenlet needs several connections at a time."""
        self._is_nested = True

    def holds(self, me: Any) -> bool:
        """Return whether a connection is counted for a greenlet."""
        return me in self._held

    def is_nested(self, me: Any) -> bool:
        """Return whether a greenlet that was admitted holds another connection."""
        return self._held[me] > 1

    @contextmanager
    def nested_wait(self, me: Any, has_idle: Callable[[], bool]) -> Iterator[None]:
        """
        Let a greenlet that holds one connection wait for another one within a ``with`` block.

        :param me: a weak reference to the greenlet.
        :param has_idle: returns whether a connection that is held is idle, and can be taken over.
        :raises PoolTimeout: each connection is held by a greenlet that waits for another one.
        """
        self._blocked.add(me)
        try:
            held = sum(self._held[each] - 1 for each in self._blocked)  # without the awaited ones
            if held >= self.capacity() and not has_idle():
                raise PoolTimeout("each connection is held by a request that waits for another one")
            yield
        finally:
            self._blocked.discard(me)

    def is_waited_for(self) -> bool:
        """Return whether a greenlet waits for admission."""
        return bool(self._line)

    def may_begin(self, me: Any) -> bool:
        """Return whether a checkout of a greenlet would be admitted now, and do not count it."""
        return me in self._held or (not self._line and self._has_room())

    def reuse(self, me: Any) -> bool:
        """
        Count a connection that was kept from an earlier checkout, when a greenlet uses it again.

        :param me: a weak reference to the greenlet.
        :returns: False if it must return the connection, and wait: the last one is reserved.
        """
        self._checkouts += 1
        if self._is_reserving() and me not in self._held:
            return self.acquire_now(me)
        # While all checkouts may be first ones, none waits for a holder of one.
        self._is_nested |= me in self._held
        self._count(me)
        return True

    def release(self, me: Any) -> None:
        """Count one connection of *me* less."""
        self._taken -= 1
        self._held[me] -= 1
        if not self._held[me]:
            del self._held[me]
        self.admit()

    def admit(self) -> None:
        """Admit the greenlets for which there is room; call it when the capacity has grown."""
        while self._line and self._has_room():
            first, waiter = self._line.popleft()
            self._count(first)  # now, so that no other greenlet takes the connection before it runs
            wake(waiter)

    def _has_room(self) -> bool:
        if self._is_reserving():
            return self._taken < max(self._guaranteed() - 1, 1)
        return self._taken < self.capacity()

    def _is_reserving(self) -> bool:
        """Return whether one connection is reserved for nested checkouts."""
        return self._is_nested or self._checkouts < NESTING_CHECKOUTS * self._guaranteed()

    def _count(self, me: Any) -> None:
        self._taken += 1
        self._held[me] = self._held.get(me, 0) + 1

    def _wait(self, me: Any, timeout_s: float) -> bool:
        waiter: Waiter[None] = Waiter()
        entry = (me, waiter)
        self._line.append(entry)
        try:
            with LockWait(), deadline.spending("queued"), gevent.Timeout(timeout_s, False):  # type: ignore[arg-type]
                deadline.wait_in(waiter.get)
        except BaseException:
            # It may have been admitted in the same moment: the connection goes to the next one.
            if me in self._held:
                self.release(me)
            else:
                self._line.remove(entry)
            raise
        if me in self._held:
            return True
        self._line.remove(entry)
        return False
