"""A psycopg2 connection that remembers what the hub and the pool need to know of it."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_INERROR
from psycopg2.extensions import connection as PsycopgConnection

from greenline.errors import DeadlineExceeded, OutcomeUnknown, PoolClosed, StoreError
from greenline.hub import deadline
from greenline.slots import Slot

READ_EVENT, WRITE = 1, 2  # libev's events


class WatchedConnection(PsycopgConnection):
    """
    A connection that keeps its watchers: making one for each wait costs as much as a statement.

    ``settled`` is true when it is connected: from then on the socket stays the same.
    """

    settled: bool = False
    _watchers: dict[int, Any] | None = None

    def watcher(self, events: int) -> Any:
        """Return what the main thread's hub waits on, one for each direction."""
        if self._watchers is None:
            self._watchers = {}
        found = self._watchers.get(events)
        if found is None:
            found = self._watchers[events] = gevent.get_hub().loop.io(self.fileno(), events)
        return found

    def drop_watchers(self) -> None:
        """Close them: the number of the socket may be another's soon."""
        watchers, self._watchers = self._watchers, None
        for watcher in (watchers or {}).values():
            with suppress(ValueError):  # a forked child has destroyed the parent's loop
                watcher.close()


class Connection(WatchedConnection):
    """
    What :func:`greenline.postgres.connect.connect` returns.

    ``pid`` is the backend's. ``farewell`` is a duplicate of the descriptor, made as soon as there
    is one to keep: libpq closes its own at a loss, and on this one the backend's end can still be
    seen. ``busy`` tells that it was in the middle of a statement. ``slot`` is its place
    in the host's slot table; ``on_close``, once, takes over from whoever closes it.
    """

    pid: int = 0
    farewell: int | None = None
    busy: bool = False
    slot: Slot | None = None
    made_s: float = 0.0
    lent_s: float = 0.0
    idle_since_s: float = 0.0
    expires_s: float = 0.0
    prepared: dict[str, str]
    on_close: Callable[["Connection"], None] | None = None

    def settle(self) -> None:
        """Be connected: from now on the socket stays the same."""
        self.pid = self.info.backend_pid
        self.prepared = {}
        self.settled = True
        self.farewell = os.dup(self.fileno())

    def commit(self) -> None:
        """
        Commit; what is no more than a lost answer is told apart from a failure.

        Raises:
            DeadlineExceeded: the request's time was over before: nothing was committed.
            StoreError: a statement failed before, and its error was swallowed.
            OutcomeUnknown: the answer was lost: nobody knows whether it happened.
        """
        if self.closed:
            super().commit()  # it raises: nothing is sent
        if deadline.remaining() == 0:
            raise DeadlineExceeded
        if self.info.transaction_status == TRANSACTION_STATUS_INERROR:
            raise StoreError("a statement of this transaction failed: it cannot be committed")
        try:
            super().commit()
        except psycopg2.Error as error:
            if self.closed:
                raise OutcomeUnknown from error
            raise
        except (DeadlineExceeded, PoolClosed, deadline.Interrupt) as error:
            raise OutcomeUnknown from error

    def break_off(self) -> None:
        """Keep the socket for a look at the backend's end: psycopg2 closes its own now."""
        self.busy = self.settled
        with suppress(psycopg2.Error, OSError):  # libpq has no socket after a loss
            if self.farewell is None:
                self.farewell = os.dup(self.fileno())
        self.drop_watchers()

    def close(self) -> None:
        """Close. Only the greenlet that uses the connection may, or nobody else uses it."""
        self.drop_watchers()
        on_close, self.on_close = self.on_close, None
        if on_close is not None and self.farewell is None and not self.closed:
            self.farewell = os.dup(self.fileno())
        super().close()
        if on_close is not None:
            on_close(self)
            return
        farewell, self.farewell = self.farewell, None
        if farewell is not None:
            os.close(farewell)

    def __del__(self) -> None:
        if self.on_close is not None:  # dropped without a close
            self.close()
        if self.farewell is not None:
            os.close(self.farewell)
