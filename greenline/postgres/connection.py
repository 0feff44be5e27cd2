"""A psycopg2 connection with the state that the hub and the pool need."""

import os
from _socket import socketpair
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import gevent
import psycopg2
from psycopg2.extensions import (
    STATUS_BEGIN,
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_INERROR,
    cursor,
)
from psycopg2.extensions import connection as PsycopgConnection

from greenline.errors import DeadlineExceeded, OutcomeUnknown, PoolClosed, StoreError
from greenline.hub import deadline
from greenline.slots import Slot

READ_EVENT, WRITE = 1, 2  # libev's events
# Not DISCARD ALL, which drops prepared statements.
RESET = (
    "close all; unlisten *; select pg_advisory_unlock_all(); discard temp; discard sequences; "
    "reset session authorization; reset all"
)


class WatchedConnection(PsycopgConnection):
    """
    A connection that keeps its watchers, because making one for each wait costs as much as a
    statement.

    ``settled`` is true once it is connected: from then on the socket stays the same.
    """

    settled: bool = False
    _watchers: dict[int, Any] | None = None

    def watcher(self, events: int) -> Any:
        """Return the main hub's watcher for *events*, one for each direction."""
        if self._watchers is None:
            self._watchers = {}
        found = self._watchers.get(events)
        if found is None:
            found = self._watchers[events] = gevent.get_hub().loop.io(self.fileno(), events)
        return found

    def drop_watchers(self) -> None:
        """Close the watchers."""
        # Before the socket is closed: another file may get its descriptor's number at once.
        watchers, self._watchers = self._watchers, None
        for watcher in (watchers or {}).values():
            with suppress(ValueError):  # a forked child has destroyed the parent's loop
                watcher.close()


class Connection(WatchedConnection):
    """
    A connection made by :func:`greenline.postgres.connect.connect`.

    - ``pid``: the backend's process id.
    - ``user``: the one that the server has logged in: not libpq's where a pgbouncer maps users.
    - ``is_requested``: whether something was sent to the server, which may have a backend then.
    - ``duplicate_fd``: a duplicate of the descriptor. libpq closes its own when the connection is
      lost; the duplicate still shows the end of the backend.
    - ``busy``: whether a statement was in progress when a wait was interrupted.
    - ``slot``: its slot in the host's slot table.
    - ``on_close``: is called once, by ``close()``, and then owns ``duplicate_fd``.
    - ``reset_statements``: they reset what a borrower may have set in the session.
    """

    pid: int = 0
    user: str | None = None
    is_requested: bool = False
    duplicate_fd: int | None = None
    busy: bool = False
    slot: Slot | None = None
    made_s: float = 0.0
    checked_out_s: float = 0.0
    idle_since_s: float = 0.0
    expires_s: float = 0.0
    prepared: dict[str, str]
    on_close: Callable[["Connection"], None] | None = None
    reset_statements: str = RESET

    def settle(self) -> None:
        """Record that it is connected: from now on the socket stays the same."""
        self.pid = self.info.backend_pid
        self.user = self.session_user()
        self.prepared = {}
        self.settled = True
        self.duplicate_fd = os.dup(self.fileno())
        _settled.add(self)

    def session_user(self) -> str | None:
        """Return the session's user, which the server reports when it changes."""
        return self.info.parameter_status("session_authorization")

    def commit(self) -> None:
        """
        Commit, and distinguish a lost answer from a failure.

        :raises DeadlineExceeded: the request's deadline had passed: nothing was committed.
        :raises StoreError: an earlier statement failed, and its error was swallowed.
        :raises OutcomeUnknown: the answer was lost: the transaction may have been committed.
        """
        self._commit(super().commit)

    def commit_begun(self) -> None:
        """
        Commit a transaction that a statement has begun, of which psycopg2 does not know.

        :raises Error: as :meth:`commit`.
        """
        self._commit(self._send_commit)

    def roll_back_begun(self) -> None:
        """Roll back, also a transaction that a statement has begun."""
        if self.status == STATUS_BEGIN:
            PsycopgConnection.rollback(self)
        else:
            self._send("rollback")

    def _send_commit(self) -> None:
        if self.info.transaction_status != TRANSACTION_STATUS_IDLE:
            self._send("COMMIT")

    def _send(self, text: str) -> None:
        # Not by a cursor of the application's class, which may log.
        with self.cursor(cursor_factory=cursor) as sending:
            sending.execute(text)

    def _commit(self, send: Callable[[], object]) -> None:
        if self.closed:
            send()  # raises InterfaceError: nothing is sent
        if deadline.remaining() == 0:
            raise DeadlineExceeded
        # The server would answer COMMIT with ROLLBACK here, without an error.
        if self.info.transaction_status == TRANSACTION_STATUS_INERROR:
            raise StoreError("a statement of this transaction failed: it cannot be committed")
        try:
            send()
        except psycopg2.Error as error:
            # Closed: COMMIT may have been executed. An error from the server leaves it open.
            if self.closed:
                raise OutcomeUnknown from error
            raise
        except (DeadlineExceeded, PoolClosed, deadline.Interrupt) as error:
            raise OutcomeUnknown from error

    def break_off(self) -> None:
        """
        Keep a duplicate of the socket before psycopg2 closes its own, after an interrupted wait.
        """
        self.busy = self.settled
        with suppress(psycopg2.Error, OSError):  # libpq has no socket after a loss
            if self.duplicate_fd is None:
                self.duplicate_fd = os.dup(self.fileno())
        self.drop_watchers()

    def close(self) -> None:
        """Close. Call it only in the greenlet that uses the connection, or when none does."""
        self.drop_watchers()
        on_close, self.on_close = self.on_close, None
        if on_close is not None and self.duplicate_fd is None and not self.closed:
            self.duplicate_fd = os.dup(self.fileno())
        super().close()
        if on_close is not None:
            on_close(self)
            return
        duplicate_fd, self.duplicate_fd = self.duplicate_fd, None
        if duplicate_fd is not None:
            os.close(duplicate_fd)

    def __del__(self) -> None:
        """Close the descriptor of a connection that was dropped without a close."""
        if self.on_close is not None:  # dropped without a close
            self.close()
        if self.duplicate_fd is not None:
            os.close(self.duplicate_fd)


_settled: WeakSet[Connection] = WeakSet()


def _leave_to_parent() -> None:
    """
    Take the sockets away from a forked child, whose copies of the parent's greenlets go on.

    One that waits for an answer would read it in the parent's place, and a close would end the
    parent's session.
    """
    # In their place is one that the server seems to have closed.
    lost, other = socketpair()
    other.close()
    for conn in [*_settled]:
        with suppress(psycopg2.Error):  # it has no socket any more
            os.dup2(lost.fileno(), conn.fileno(), inheritable=False)
        if conn.duplicate_fd is not None:
            os.dup2(lost.fileno(), conn.duplicate_fd, inheritable=False)
    lost.close()


os.register_at_fork(after_in_child=_leave_to_parent)
