"""What a repository is handed: connections to work on, and reads in one call."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from greenline.errors import StoreDown
from greenline.postgres import prepared
from greenline.postgres.connection import Connection
from greenline.postgres.errors import is_lost
from greenline.postgres.pool import ConnectionPool


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

        It is tried once more when the connection turns out to be dead.

        Raises:
            what :meth:`connection` raises.
        """
        try:
            return self._fetch(name, text, values)
        except StoreDown as error:
            if not is_lost(error.__cause__):
                raise
        return self._fetch(name, text, values)

    def _fetch(self, name: str, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
            if self._prepare:
                prepared.execute(conn, cursor, name, text, values)
            else:
                cursor.execute(text, values)
            return cursor.fetchall()
