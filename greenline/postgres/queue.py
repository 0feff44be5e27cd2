"""
Queue the greenlets that wait for a connection, first come, first served.

In an overload most requests wait here, so a waiter has no watcher and no timer of its own: the
request's timer ends its wait, and one greenlet looks for all disconnected clients.
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
    """One waiting greenlet, and the time until which it can use a connection."""

    def __init__(self) -> None:
        self.sock = disconnect.client()
        self.joined_s = monotonic()
        self.is_served = False
        self.conn: Connection | None = None
        self.error: Exception | None = None
        self._switch: Switch[None] = Switch()
        self._left_s = deadline.remaining()
        self._until = inf if self._left_s is None else self.joined_s + self._left_s

    def is_late(self, need_s: float) -> bool:
        """Return whether less than *need_s* seconds, and less than half of its time, are left."""
        if self._left_s is None:
            return False
        return self._until - monotonic() < min(need_s, self._left_s / 2)

    def serve(self, conn: Connection | None, error: Exception | None = None) -> None:
        """
        Hand over a connection or an error; the greenlet continues in the next round of the loop.

        :param conn: the connection, or None.
        :param error: the exception to raise in the greenlet. Default None.
        """
        self.is_served, self.conn, self.error = True, conn, error
        # Do not switch to the greenlet here: the caller may still change its lists, which needs no
        # greenlet switch in between.
        gevent.get_hub().loop.run_callback(self._switch.switch, None)

    def wait(self, timeout_s: float | None) -> None:
        """
        Return when the waiter has been served, or after *timeout_s* seconds.

        :raises DeadlineExceeded: the request's deadline has passed.
        """
        if self.is_served:
            return
        # The deadline comes first: its timer exists already, and another one would cost more.
        if timeout_s is None or timeout_s >= (self._left_s or inf):
            deadline.wait_in(self._switch.get)
            return
        with gevent.Timeout(timeout_s, False):  # type: ignore[arg-type]
            deadline.wait_in(self._switch.get)


class Queue:
    """
    Waiting greenlets.

    :param pass_on: takes a connection that was handed to a greenlet which no longer waits.
    """

    def __init__(self, pass_on: Callable[[Connection], object]) -> None:
        self._pass_on = pass_on
        self._waiters: deque[Waiter] = deque()
        self._is_looking = False

    def __len__(self) -> int:
        return len(self._waiters)

    def waited_s(self) -> float:
        """Return for how many seconds the first one waits, 0 where there is none."""
        return monotonic() - self._waiters[0].joined_s if self._waiters else 0.0

    def join(self) -> Waiter:
        """Add the current greenlet at the end."""
        waiter = Waiter()
        self._waiters.append(waiter)
        if not self._is_looking:
            self._is_looking = True
            gevent.spawn(self._look_for_the_gone)
        return waiter

    def wait(self, waiter: Waiter, timeout_s: float | None) -> Connection | None:
        """
        Return the connection that *waiter* is handed, or None after *timeout_s* seconds.

        :param waiter: the current greenlet's, from :meth:`join`.
        :param timeout_s: seconds, float; None for no limit but the deadline.
        :raises ClientGone: the request's client has disconnected.
        :raises DeadlineExceeded: the deadline passed, or too little time was left when its turn
            came.
        :raises Error: as given to :meth:`fail` or :meth:`fail_all`.
        """
        try:
            with LockWait():
                waiter.wait(timeout_s)
            if waiter.error is not None:
                raise waiter.error
            if disconnect.is_disconnected(waiter.sock):
                raise ClientGone
        except BaseException:
            # A connection may have been handed over at the same time as the timeout or the kill: it
            # is passed on.
            self.leave(waiter)
            raise
        if not waiter.is_served:
            self._waiters.remove(waiter)
        return waiter.conn

    def hand(self, conn: Connection, need_s: float) -> bool:
        """
        Hand a connection to the first waiter that has the time to use it.

        :param conn: the connection.
        :param need_s: the average duration of a checkout in seconds, float.
        :returns: whether there was such a waiter.
        """
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.is_late(need_s):
                waiter.serve(conn)
                return True
            # If it were served all the same, each waiter would get its connection too late to use
            # it: in a lasting overload no request would be answered.
            waiter.serve(None, DeadlineExceeded())
        return False

    def fail(self, error: Exception, begun_s: float = inf) -> None:
        """
        Raise *error* in the first waiter, if there is one.

        :param error: what an attempt to connect ended with.
        :param begun_s: the monotonic time at which the attempt began, float: a waiter that joined
            later continues to wait. Default inf.
        """
        if self._waiters and self._waiters[0].joined_s <= begun_s:
            self._waiters.popleft().serve(None, error)

    def fail_all(self, error: Exception) -> None:
        """Raise *error* in all waiters."""
        while self._waiters:
            self.fail(error)

    def leave(self, waiter: Waiter) -> None:
        """Remove *waiter*, and pass on the connection that it was handed."""
        if not waiter.is_served:
            self._waiters.remove(waiter)
        elif waiter.conn is not None:
            self._pass_on(waiter.conn)

    def _look_for_the_gone(self) -> None:
        """Raise ClientGone in waiters whose clients disconnected, as long as there are waiters."""
        while self._waiters:
            gevent.sleep(DISCONNECT_CHECK_S)
            waiting = {waiter.sock: waiter for waiter in self._waiters if waiter.sock is not None}
            for sock in disconnect.disconnected(waiting):
                self._waiters.remove(waiting[sock])
                waiting[sock].serve(None, ClientGone())
        self._is_looking = False
