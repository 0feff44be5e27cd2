"""Stop what a backend does for nobody: psycopg2's own ``cancel()`` blocks the whole worker."""

import threading
from collections.abc import Callable

import psycopg2

from greenline import deadline
from greenline.errors import GreenlineError
from greenline.postgres.clean import is_dead
from greenline.postgres.connection import Connection

TIMEOUT_S = 5.0


class Canceller:
    """Cancels statements over a connection kept for this; it is made when first needed."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._conn: Connection | None = None
        self._closed = False

    def cancel(self, pid: int) -> bool:
        """Return whether the backend *pid* was told to stop; one that is gone cannot be."""
        try:
            with deadline.limit(TIMEOUT_S), self._lock:
                if self._conn is not None and is_dead(self._conn):
                    self._drop()  # the server ended it while it was idle
                return self._ask(pid)
        except (psycopg2.Error, GreenlineError):
            return False

    def close(self) -> None:
        """Close the connection; a cancel in progress closes its own."""
        self._closed = True
        if not self._lock.locked():
            self._drop()

    def _ask(self, pid: int) -> bool:
        try:
            if self._conn is None:
                self._conn = self._connect()
                self._conn.autocommit = True
            with self._conn.cursor() as cursor:
                cursor.execute("select pg_cancel_backend(%s)", (pid,))
                row = cursor.fetchone()
        except BaseException:
            self._drop()
            raise
        if self._closed:
            self._drop()
        return bool(row and row[0])

    def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()
