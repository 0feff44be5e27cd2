"""
Those who wait for a connection: first come, first served.

1. What is handed over goes to the one who waited longest, an error as well as a connection.
2. Whose time is as good as over when its turn comes is told so, and the next one is served.
3. Who gave up, was killed or lost its client leaves the queue, and passes on what was handed to it
   in the same moment.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic

from gevent.event import AsyncResult

from greenline import deadline, hangup
from greenline.errors import ClientGone, DeadlineExceeded
from greenline.postgres.connection import Connection


class Waiter:
    """One who waits, and until when it is worth while to serve it."""

    def __init__(self) -> None:
        self.result: AsyncResult[Connection] = AsyncResult()
        self._left_s = deadline.remaining()
        self._until = inf if self._left_s is None else monotonic() + self._left_s

    def is_late(self, need_s: float) -> bool:
        """Return whether less than *need_s* seconds, and less than half of its time, are left."""
        if self._left_s is None:
            return False
        return self._until - monotonic() < min(need_s, self._left_s / 2)


class Queue:
    """Greenlets that wait; *pass_on* takes what was handed to one that is no longer there."""

    def __init__(self, pass_on: Callable[[Connection], object]) -> None:
        self._pass_on = pass_on
        self._waiters: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self) -> Waiter:
        """Stand at the end."""
        waiter = Waiter()
        self._waiters.append(waiter)
        return waiter

    def wait(self, waiter: Waiter, timeout_s: float | None) -> Connection | None:
        """
        Return what *waiter* is handed within *timeout_s* seconds, else None.

        Raises:
            ClientGone: nobody wants the answer any more.
            DeadlineExceeded: its turn came when there was too little time left.
            what :meth:`fail` and :meth:`fail_all` are given.
        """
        sock = hangup.client()
        try:
            with hangup.noticing(sock, lambda: self._lose(waiter)):
                waiter.result.wait(timeout=timeout_s)
            if hangup.is_gone(sock):
                raise ClientGone
        except BaseException:
            self._leave(waiter)
            raise
        if not waiter.result.ready():
            self._waiters.remove(waiter)
            return None
        return waiter.result.get()

    def hand(self, conn: Connection, need_s: float) -> bool:
        """
        Give *conn* to the first who has the time to use it; return whether there is one.

        Work takes *need_s* seconds. Served in turn but too late, each would take a connection for
        nothing: in an overload that lasts nobody would be answered any more.
        """
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.is_late(need_s):
                waiter.result.set(conn)
                return True
            waiter.result.set_exception(DeadlineExceeded())
        return False

    def fail(self, error: Exception) -> None:
        """Raise *error* in the first, if there is one."""
        if self._waiters:
            self._waiters.popleft().result.set_exception(error)

    def fail_all(self, error: Exception) -> None:
        """Raise *error* in all of them."""
        while self._waiters:
            self.fail(error)

    def _lose(self, waiter: Waiter) -> None:
        """Send away one whose client hung up; what it was handed already, it passes on itself."""
        if not waiter.result.ready():
            self._waiters.remove(waiter)
            waiter.result.set_exception(ClientGone())

    def _leave(self, waiter: Waiter) -> None:
        if not waiter.result.ready():
            self._waiters.remove(waiter)
        elif waiter.result.value is not None:
            self._pass_on(waiter.result.value)
