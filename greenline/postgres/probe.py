"""Ask Postgres whether it answers, over one connection beside the pool."""

from collections.abc import Callable

from greenline.errors import PoolClosed
from greenline.postgres.connection import Connection
from greenline.postgres.errors import translated


class Probe:
    """
    The readiness check's own connection, so that an exhausted pool does not look like an outage.

    *on_connect* is called with each new connection, *check* with it at every ask; both raise
    what is wrong. Whatever fails, the next ask begins with a new connection.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        on_connect: Callable[[Connection], None],
        check: Callable[[Connection], None],
    ) -> None:
        self._connect = connect
        self._on_connect = on_connect
        self._check = check
        self._conn: Connection | None = None
        self._closed = False

    def __call__(self) -> None:
        """
        Ask once.

        Raises:
            StoreDown: no answer, or none that makes sense.
        """
        if self._closed:
            raise PoolClosed
        conn, self._conn = self._conn, None
        try:
            if conn is None:
                conn = self._connect()
                conn.autocommit = True
                self._on_connect(conn)
            with translated():
                self._check(conn)
        except BaseException:
            if conn is not None:
                conn.close()
            raise
        if self._closed:
            conn.close()
        else:
            self._conn = conn

    def close(self) -> None:
        """Close the connection when it is idle; an ask in progress closes its own."""
        self._closed = True
        if self._conn is not None:
            self._conn.close()
            self._conn = None
