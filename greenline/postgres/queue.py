"""
Those who wait for a connection: first come, first served.

1. What is handed over goes to the one who waited longest, an error as well as a connection.
2. Whose time is as good as over when its turn comes is told so, and the next one is served.
3. Who gave up, was killed or lost its client leaves the queue, and passes on what was handed to it
   in the same moment.
4. In an overload most requests come by here: who waits has no watcher and no timer of its own. The
   request's timer ends its wait, and one look every ``DISCONNECT_CHECK_S`` finds all who hung up.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic

import gevent
from gevent.hub import Waiter as Switch

from greenline.errors import ClientGone, DeadlineExceeded
from greenline.hub import deadline, disconnect
from greenline.hub.lock_waits import LockWait
from greenline.postgres.connection import Connection

DISCONNECT_CHECK_S = 0.05


class Waiter:
    """One who waits, and until when it is worth while to serve it."""

    def __init__(self) -> None:
        self.sock = disconnect.client()
        self.is_served = False
        self.conn: Connection | None = None
        self.error: Exception | None = None
        self._switch: Switch[None] = Switch()
        self._left_s = deadline.remaining()
        self._until = inf if self._left_s is None else monotonic() + self._left_s

    def is_late(self, need_s: float) -> bool:
        """Return whether less than *need_s* seconds, and less than half of its time, are left."""
        if self._left_s is None:
            return False
        return self._until - monotonic() < min(need_s, self._left_s / 2)

    def serve(self, conn: Connection | None, error: Exception | None = None) -> None:
        """Hand over *conn* or *error*; the greenlet goes on in the next turn of the loop."""
        self.is_served, self.conn, self.error = True, conn, error
        gevent.get_hub().loop.run_callback(self._switch.switch, None)

    def wait(self, timeout_s: float | None) -> None:
        """
        Return when it is served, or after *timeout_s* seconds.

        Raises:
            DeadlineExceeded: the request's time is over.
        """
        if self.is_served:
            return
        if timeout_s is None or timeout_s >= (self._left_s or inf):
            deadline.wait_in(self._switch.get)
            return
        with gevent.Timeout(timeout_s, False):  # type: ignore[arg-type]
            deadline.wait_in(self._switch.get)


class Queue:
    """Greenlets that wait; *pass_on* takes what was handed to one that is no longer there."""

    def __init__(self, pass_on: Callable[[Connection], object]) -> None:
        self._pass_on = pass_on
        self._waiters: deque[Waiter] = deque()
        self._is_looking = False

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self) -> Waiter:
        """Stand at the end."""
        waiter = Waiter()
        self._waiters.append(waiter)
        if not self._is_looking:
            self._is_looking = True
            gevent.spawn(self._look_for_the_gone)
        return waiter

    def wait(self, waiter: Waiter, timeout_s: float | None) -> Connection | None:
        """
        Return what *waiter* is handed within *timeout_s* seconds, else None.

        Raises:
            ClientGone: nobody wants the answer any more.
            DeadlineExceeded: its time is over, or its turn came when there was too little left.
            what :meth:`fail` and :meth:`fail_all` are given.
        """
        try:
            with LockWait():
                waiter.wait(timeout_s)
            if waiter.error is not None:
                raise waiter.error
            if disconnect.is_disconnected(waiter.sock):
                raise ClientGone
        except BaseException:
            self._leave(waiter)
            raise
        if not waiter.is_served:
            self._waiters.remove(waiter)
        return waiter.conn

    def hand(self, conn: Connection, need_s: float) -> bool:
        """
        Give *conn* to the first who has the time to use it; return whether there is one.

        Work takes *need_s* seconds. Served in turn but too late, each would take a connection for
        nothing: in an overload that lasts nobody would be answered any more.
        """
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.is_late(need_s):
                waiter.serve(conn)
                return True
            waiter.serve(None, DeadlineExceeded())
        return False

    def fail(self, error: Exception) -> None:
        """Raise *error* in the first, if there is one."""
        if self._waiters:
            self._waiters.popleft().serve(None, error)

    def fail_all(self, error: Exception) -> None:
        """Raise *error* in all of them."""
        while self._waiters:
            self.fail(error)

    def _leave(self, waiter: Waiter) -> None:
        if not waiter.is_served:
            self._waiters.remove(waiter)
        elif waiter.conn is not None:
            self._pass_on(waiter.conn)

    def _look_for_the_gone(self) -> None:
        """Send away those whose clients hung up, as long as anybody waits."""
        while self._waiters:
            gevent.sleep(DISCONNECT_CHECK_S)
            waiting = {waiter.sock: waiter for waiter in self._waiters if waiter.sock is not None}
            for sock in disconnect.gone(waiting):
                self._waiters.remove(waiting[sock])
                waiting[sock].serve(None, ClientGone())
        self._is_looking = False
