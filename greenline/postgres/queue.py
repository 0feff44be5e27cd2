"""
Those who wait for a connection: first come, first served.

1. What is handed over goes to the one who waited longest, an error as well as a connection.
2. Who gave up, was killed or lost its client leaves the queue, and passes on what was handed to it
   in the same moment.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gevent.event import AsyncResult

from greenline import hangup
from greenline.errors import ClientGone
from greenline.postgres.connection import Connection

if TYPE_CHECKING:
    Waiter = AsyncResult[Connection]
else:
    Waiter = AsyncResult


class Queue:
    """Greenlets that wait; *pass_on* takes what was handed to one that is no longer there."""

    def __init__(self, pass_on: Callable[[Connection], None]) -> None:
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
            what :meth:`fail` and :meth:`fail_all` are given.
        """
        sock = hangup.client()
        try:
            with hangup.noticing(sock, lambda: self._lose(waiter)):
                waiter.wait(timeout=timeout_s)
            if hangup.is_gone(sock):
                raise ClientGone
        except BaseException:
            self._leave(waiter)
            raise
        if not waiter.ready():
            self._waiters.remove(waiter)
            return None
        return waiter.get()

    def hand(self, conn: Connection) -> bool:
        """Give *conn* to the first; return whether there is one."""
        if not self._waiters:
            return False
        self._waiters.popleft().set(conn)
        return True

    def fail(self, error: Exception) -> None:
        """Raise *error* in the first, if there is one."""
        if self._waiters:
            self._waiters.popleft().set_exception(error)

    def fail_all(self, error: Exception) -> None:
        """Raise *error* in all of them."""
        while self._waiters:
            self.fail(error)

    def _lose(self, waiter: Waiter) -> None:
        """Its client hung up: what it was handed in this moment is for the next one."""
        self._leave(waiter)
        waiter.set_exception(ClientGone())

    def _leave(self, waiter: Waiter) -> None:
        if not waiter.ready():
            self._waiters.remove(waiter)
        elif waiter.value is not None:
            self._pass_on(waiter.value)
