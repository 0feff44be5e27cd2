"""Offer connections, single reads, and statements of a transaction to a repository."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import gevent
from psycopg2.extensions import cursor as Cursor

from greenline.errors import ConnectionLost, OutcomeUnknown, SerializationFailure
from greenline.hub import deadline
from greenline.hub.backoff import Backoff
from greenline.postgres import prepared
from greenline.postgres.connection import BlockCursor, Connection
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.prepared import Named

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

    def repeat(self, work: Callable[[Cursor], T], *, reset: bool = True) -> T:
        """
        Return the result of *work*, in a transaction that is repeated as a whole if it must be.

        It is repeated after a serialization failure, a deadlock, or the loss of its connection
        before COMMIT: with a random pause that grows, within the request's time, and with at most
        ``MAX_CONFLICTS`` attempts.

        :param work: is called with a cursor, once for each attempt. BEGIN is sent with its first
            statement, which saves a round trip.
        :param reset: as for :meth:`connection`. Default True.
        :raises SerializationFailure: the last attempt failed in this way.
        :raises ConnectionLost: the last attempt failed in this way.
        :raises Error: as :meth:`connection`.
        """
        # All of a pause is random: the transactions of a conflict are to spread as far as they can.
        backoff = Backoff(2 * CONFLICT_PAUSE_S, MAX_CONFLICT_PAUSE_S, jitter=1)
        for _ in range(1, MAX_CONFLICTS):
            try:
                return self._transact(work, reset)
            except (SerializationFailure, ConnectionLost):
                pause_s = backoff.next_s()
                if pause_s >= (deadline.remaining(MAX_CONFLICT_PAUSE_S) or 0):
                    raise
                gevent.sleep(pause_s)
        return self._transact(work, reset)

    def run(
        self, cursor: Cursor, named: Sequence[Named], values: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """
        Run statements in one round trip, in a transaction of :meth:`repeat`.

        :param cursor: the one that its work is called with.
        :param named: the name under which each is prepared, and its text with ``%(value)s`` in it.
        :param values: the values of all by name.
        :returns: the rows of the last statement.
        :raises psycopg2.Error: a statement failed.
        :raises SerializationFailure: the schema has changed since one was prepared.
        """
        self._execute(cursor, named, values)
        return cursor.fetchall()

    def _transact(self, work: Callable[[Cursor], T], reset: bool) -> T:
        with (
            self._pool.block(reset=reset) as conn,
            conn.cursor(cursor_factory=BlockCursor) as cursor,
        ):
            return work(cursor)

    def _fetch(self, name: str, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
            self._execute(cursor, [(name, text)], values)
            return cursor.fetchall()

    def _execute(self, cursor: Cursor, named: Sequence[Named], values: Mapping[str, Any]) -> None:
        if self._prepare:
            prepared.execute(cursor, named, values)
        else:
            cursor.execute("; ".join([text for _, text in named]), values)
