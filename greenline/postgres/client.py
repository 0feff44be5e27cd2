"""What a repository is handed: connections to work on, and reads in one call."""

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import gevent

from greenline.errors import ConnectionLost, OutcomeUnknown, SerializationFailure
from greenline.hub import deadline
from greenline.postgres import prepared
from greenline.postgres.connection import Connection
from greenline.postgres.pool import ConnectionPool

T = TypeVar("T")

MAX_CONFLICTS = 8
CONFLICT_PAUSE_S = 0.005
MAX_CONFLICT_PAUSE_S = 2.0


class Postgres:
    """
    Postgres through *pool*.

    Without *prepare* no statement is prepared, as pgbouncer needs it in transaction mode.
    """

    def __init__(self, pool: ConnectionPool, *, prepare: bool = True) -> None:
        self._pool = pool
        self._prepare = prepare

    def connection(
        self, *, autocommit: bool = False, reset: bool = True
    ) -> AbstractContextManager[Connection]:
        """Lend a connection, as :meth:`ConnectionPool.connection` does."""
        return self._pool.connection(autocommit=autocommit, reset=reset)

    def fetch(self, name: str, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """
        Run one statement that only reads, prepared under *name*, and return its rows.

        It is tried once more when its connection turns out to be dead.

        Raises:
            what :meth:`connection` raises, but for OutcomeUnknown: nothing was written.
        """
        try:
            return self._fetch(name, text, values)
        except (ConnectionLost, OutcomeUnknown):
            pass
        try:
            return self._fetch(name, text, values)
        except OutcomeUnknown as error:
            raise ConnectionLost from error.__cause__

    def repeat(self, work: Callable[[Connection], T], *, reset: bool = True) -> T:
        """
        Return what *work* returns, in a transaction that may be repeated as a whole.

        It is, after a serialization failure, a deadlock or the loss of its connection before
        COMMIT, with a growing pause at random, as long as the request has time, and
        ``MAX_CONFLICTS`` times at most.

        Raises:
            SerializationFailure, ConnectionLost: the last attempt failed in the same way.
            what :meth:`connection` raises.
        """
        for attempt in range(1, MAX_CONFLICTS):
            try:
                return self._transact(work, reset)
            except (SerializationFailure, ConnectionLost):
                pause_s = random.uniform(0, CONFLICT_PAUSE_S * 2**attempt)  # noqa: S311
                if pause_s >= (deadline.remaining(MAX_CONFLICT_PAUSE_S) or 0):
                    raise
                gevent.sleep(pause_s)
        return self._transact(work, reset)

    def _transact(self, work: Callable[[Connection], T], reset: bool) -> T:
        with self._pool.connection(reset=reset) as conn:
            return work(conn)

    def _fetch(self, name: str, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
            if self._prepare:
                prepared.execute(conn, cursor, name, text, values)
            else:
                cursor.execute(text, values)
            return cursor.fetchall()
