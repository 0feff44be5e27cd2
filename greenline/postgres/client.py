"""Offer connections, single reads, and transactions to a repository."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import gevent

from greenline.errors import ConnectionLost, OutcomeUnknown, SerializationFailure
from greenline.hub import deadline
from greenline.hub.backoff import Backoff
from greenline.postgres import prepared
from greenline.postgres.connection import Connection
from greenline.postgres.pool import Checkout, ConnectionPool
from greenline.postgres.transaction import BeginningCursor, Transaction

T = TypeVar("T")

MAX_CONFLICTS = 8
CONFLICT_PAUSE_S = 0.005
MAX_CONFLICT_PAUSE_S = 2.0


class Postgres:
    """
    Postgres through a pool.

    :param pool: the pool of the connections.
    :param prepare: whether statements are prepared, bool; False for a pgbouncer in
        transaction mode. Default True.
    """

    def __init__(self, pool: ConnectionPool, *, prepare: bool = True) -> None:
        self._pool = pool
        self._prepare = prepare

    def connection(
        self, *, autocommit: bool = False, reset: bool = True
    ) -> AbstractContextManager[Connection]:
        """
        Lend a connection, as :meth:`ConnectionPool.connection` does.

        :param autocommit: each statement is a transaction of its own, bool. Default False.
        :param reset: reset the session afterwards, bool. Default True.
        :returns: a context manager that gives a :class:`Connection`.
        :raises Error: as :meth:`ConnectionPool.connection`.
        """
        return self._pool.connection(autocommit=autocommit, reset=reset)

    def fetch(self, name: str, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """
        Run one statement that only reads and return its rows; retry once on a lost connection.

        :param name: the name under which the statement is prepared, str.
        :param text: the statement, with ``%(value)s`` in it, str.
        :param values: the values by name.
        :raises Error: as :meth:`connection`, but not OutcomeUnknown, since nothing was written.
        """
        try:
            return self._fetch(name, text, values)
        except (ConnectionLost, OutcomeUnknown):
            # The connection may have been lost while it was idle, and a read may be repeated.
            pass
        try:
            return self._fetch(name, text, values)
        except OutcomeUnknown as error:
            raise ConnectionLost from error.__cause__

    def repeat(self, work: Callable[[Connection], T], *, reset: bool = True) -> T:
        """
        Return the result of *work*, in a transaction that is repeated as a whole if it must be.

        It is repeated after a serialization failure, a deadlock, or the loss of its connection
        before COMMIT: with a random pause that grows, within the request's time, and with at most
        ``MAX_CONFLICTS`` attempts.

        :param work: is called with a connection, once for each attempt.
        :param reset: as for :meth:`connection`. Default True.
        :raises SerializationFailure: the last attempt failed in this way.
        :raises ConnectionLost: the last attempt failed in this way.
        :raises Error: as :meth:`connection`.
        """

        def attempt() -> T:
            with self._pool.connection(reset=reset) as conn:
                return work(conn)

        return self._repeated(attempt)

    def transact(self, work: Callable[[Transaction], T], *, reset: bool = True) -> T:
        """
        Do the same as :meth:`repeat` with a round trip less: BEGIN is sent with a statement.

        :param work: is called with a :class:`Transaction`, once for each attempt.
        :param reset: as for :meth:`connection`. Default True.
        :raises Error: as :meth:`repeat`.
        """

        def attempt() -> T:
            with (
                Checkout(self._pool, autocommit=False, reset=reset, is_begun=True) as conn,
                conn.cursor(cursor_factory=BeginningCursor) as cursor,
            ):
                transaction = Transaction(cursor, prepare=self._prepare)
                result = work(transaction)
                transaction.commit()
                return result

        return self._repeated(attempt)

    def _repeated(self, attempt: Callable[[], T]) -> T:
        # All of a pause is random: the transactions of a conflict are to spread as far as they can.
        backoff = Backoff(2 * CONFLICT_PAUSE_S, MAX_CONFLICT_PAUSE_S, jitter=1)
        for _ in range(1, MAX_CONFLICTS):
            try:
                return attempt()
            except (SerializationFailure, ConnectionLost):
                pause_s = backoff.next_s()
                if pause_s >= (deadline.remaining(MAX_CONFLICT_PAUSE_S) or 0):
                    raise
                gevent.sleep(pause_s)
        return attempt()

    def _fetch(self, name: str, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
            if self._prepare:
                prepared.execute(cursor, [(name, text)], values)
            else:
                cursor.execute(text, values)
            return cursor.fetchall()
