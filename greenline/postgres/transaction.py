"""Run the statements of a transaction; its BEGIN is sent with the first of them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from psycopg2.extensions import cursor as Cursor

from greenline.errors import StoreError
from greenline.postgres import prepared
from greenline.postgres.connection import Connection
from greenline.postgres.prepared import Named

BEGIN = "begin; "


class BeginningCursor(Cursor):
    """
    A cursor that sends BEGIN in one message with a statement, where no transaction is in progress.

    psycopg2 sends it apart, which takes a round trip; so the connection is in autocommit mode.
    """

    def execute(self, query: str, vars: Any = None) -> None:  # type: ignore[override] # noqa: A002
        """Execute as psycopg2 does."""
        # By the server's state: a statement may fail before anything was executed.
        if self.connection.info.transaction_status == TRANSACTION_STATUS_IDLE:
            query = BEGIN + query
        super().execute(query, vars)


class Transaction:
    """
    The statements of one transaction.

    :param cursor: they are executed by it.
    :param prepare: whether those with names are prepared, bool.
    """

    def __init__(self, cursor: Cursor, *, prepare: bool) -> None:
        self._cursor, self._prepare = cursor, prepare
        self._has_failed = False

    def execute(self, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """
        Run one statement, which is planned for these values.

        :param text: the statement, with ``%(value)s`` in it, str.
        :param values: the values by name.
        :returns: its rows.
        :raises psycopg2.Error: it failed.
        """
        return self._rows_of(partial(self._cursor.execute, text, values))

    def run(self, named: Sequence[Named], values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """
        Run prepared statements in one round trip.

        :param named: the name under which each is prepared, and its text with ``%(value)s`` in it.
        :param values: the values of all by name.
        :returns: the rows of the last statement.
        :raises psycopg2.Error: a statement failed.
        :raises SerializationFailure: the schema has changed since one was prepared.
        """
        if self._prepare:
            return self._rows_of(partial(prepared.execute, self._cursor, named, values))
        return self.execute("; ".join([text for _, text in named]), values)

    def commit(self) -> None:
        """
        Commit.

        :raises StoreError: a statement failed, and its error was swallowed.
        :raises Error: as :meth:`Connection.commit`.
        """
        if self._has_failed:
            raise StoreError("a statement of this transaction failed: it cannot be committed")
        cast(Connection, self._cursor.connection).commit_begun()

    def _rows_of(self, execute: Any) -> list[tuple[Any, ...]]:
        try:
            execute()
            return self._cursor.fetchall() if self._cursor.description else []
        except BaseException:
            self._has_failed = True
            raise
