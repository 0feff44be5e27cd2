"""
Count a role's connections on the Postgres server, without taking one of them.

An ordinary connection, a superuser's too, counts in ``max_connections``: with it open, the 97
that are left to other roles become 96, and the experiment is another one. A replication
connection counts in ``max_wal_senders`` instead, and can ask questions too, so we look through
one (the server needs ``max_wal_senders`` above 0, as it is unless set).
"""

import threading
from types import TracebackType

import psycopg2
from psycopg2.extras import LogicalReplicationConnection

# A backend that is still in its start-up has no name yet: it is not one the role holds.
HELD = """
    select count(*) from pg_stat_activity
    where backend_type = 'client backend' and usename = %s
"""
ALL = "select count(*) from pg_stat_activity where backend_type = 'client backend'"


class Backends:
    """The connections of *role* to the server at *superuser_url*."""

    def __init__(self, superuser_url: str, role: str = "greenline") -> None:
        self._role = role
        self._connection = psycopg2.connect(
            superuser_url, connection_factory=LogicalReplicationConnection
        )
        self._cursor = self._connection.cursor()
        self._asking = threading.Lock()

    def count(self) -> int:
        """Count those that the role holds."""
        return self._ask(HELD)

    def gone(self) -> bool:
        """Say whether no client is connected, not even half."""
        return self._ask(ALL) == 0

    def close(self) -> None:
        """Stop looking."""
        self._connection.close()

    def _ask(self, query: str) -> int:
        with self._asking:
            self._cursor.execute(query, (self._role,) if query is HELD else None)
            (row,) = self._cursor.fetchall()
        return int(row[0])


class Highest:
    """The highest count seen in a ``with`` block, looked at every *every_s* seconds."""

    def __init__(self, backends: Backends, every_s: float = 0.02) -> None:
        self.seen = 0
        self._backends = backends
        self._every_s = every_s
        self._error: psycopg2.Error | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        try:
            while not self._end.wait(self._every_s):
                self.seen = max(self.seen, self._backends.count())
        except psycopg2.Error as error:
            self._error = error

    def __enter__(self) -> "Highest":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        # A count that stopped half-way is none.
        if self._error is not None and error is None:
            raise self._error
