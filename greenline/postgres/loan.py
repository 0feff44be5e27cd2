"""A connection that is lent for the length of a block, which is one transaction."""

from types import TracebackType
from typing import TYPE_CHECKING

import psycopg2

from greenline.errors import ConnectionLost, GreenlineError, OutcomeUnknown, StoreError
from greenline.postgres.connection import Connection
from greenline.postgres.errors import evicts, first_line, is_lost, translate

if TYPE_CHECKING:
    from greenline.postgres.pool import ConnectionPool


class Loan:
    """
    What :meth:`ConnectionPool.connection` returns, to be entered once.

    A class, because every request pays for it: ``contextmanager`` costs twice as much.
    """

    def __init__(self, pool: "ConnectionPool", autocommit: bool, reset: bool) -> None:
        self._pool = pool
        self._autocommit = autocommit
        self._reset = reset

    def __enter__(self) -> Connection:
        conn = self._conn = self._pool.lend()
        try:
            conn.autocommit = self._autocommit
        except BaseException as error:
            self._end(error)
            raise
        return conn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None and not self._autocommit:
            try:
                self._conn.commit()
            except BaseException as failed:
                self._end(failed)
                raise
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Give the connection back; psycopg2's errors leave the block as ours."""
        try:
            if isinstance(error, psycopg2.Error):
                raise self._judged(error) from error
            if isinstance(error, OutcomeUnknown):
                self._pool.distrust(self._conn)
        finally:
            self._pool.take_back(self._conn, self._reset)

    def _judged(self, error: psycopg2.Error) -> GreenlineError:
        conn = self._conn
        if isinstance(error, psycopg2.InterfaceError) and not conn.closed:
            return StoreError(f"psycopg2: {first_line(error)}")  # a closed cursor, for instance
        is_over = bool(conn.closed) and is_lost(error)
        # A connection that was closed on our side says nothing of the others.
        if evicts(error) or (is_over and not isinstance(error, psycopg2.InterfaceError)):
            self._pool.distrust(conn)
        if is_over and self._autocommit:  # each statement stood alone: the last one may be done
            return OutcomeUnknown()
        if is_over:
            return ConnectionLost(f"Postgres: {first_line(error)}")
        return translate(error)
