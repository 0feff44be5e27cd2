"""
psycopg2's wait callback: wait in the hub, and no longer than the request may.

1. psycogreen's callback makes a watcher for each wait and knows no deadline. This one keeps a
   watcher for each direction of a connection, and the request's own timer ends the wait: with a
   deadline it costs no more than psycogreen's (``bench.callbacks``).
2. While connecting there is a new watcher for each wait: libpq's next address is another socket
   under the same number, and an old watcher would wait for the first one for ever.
3. Whatever is raised here, the deadline or a kill, makes psycopg2 close the connection. Its
   socket is kept for the pool, which waits for the backend's end. The statement of a connection
   that no pool has made is cancelled.
"""

from collections.abc import Callable
from functools import wraps

import gevent
import psycopg2
from psycopg2.extensions import POLL_OK, POLL_READ, POLL_WRITE
from psycopg2.extensions import connection as PsycopgConnection

from greenline.hub import deadline
from greenline.postgres.cancel import cancel_statement
from greenline.postgres.connection import READ_EVENT, WRITE, Connection, WatchedConnection

Callback = Callable[[PsycopgConnection], None]
EVENTS = {POLL_READ: READ_EVENT, POLL_WRITE: WRITE}


def wait(conn: PsycopgConnection) -> None:
    """
    Return when the operation of *conn* is complete.

    Raises:
        DeadlineExceeded: the request's deadline has passed.
    """
    try:
        with deadline.spending("postgres"):
            # Native threads have loops of their own, which end before the connection does.
            is_main = gevent.get_hub().main_hub
            watched = conn if isinstance(conn, WatchedConnection) and is_main else None
            while (state := conn.poll()) != POLL_OK:
                if state not in EVENTS:
                    raise psycopg2.OperationalError(f"psycopg2 polls {state}")
                if watched is not None and watched.settled:
                    deadline.wait_for(watched.watcher(EVENTS[state]))
                else:
                    _wait_once(conn, EVENTS[state])
    except BaseException:
        _break_off(conn)
        raise


def keeping_promises(callback: Callback) -> Callback:
    """Return another's *callback*, after which the pool can see a backend off as after ours."""

    @wraps(callback)
    def wait(conn: PsycopgConnection) -> None:
        try:
            with deadline.spending("postgres"):
                callback(conn)
        except BaseException:
            _break_off(conn)
            raise

    return wait


def _break_off(conn: PsycopgConnection) -> None:
    if isinstance(conn, Connection):
        conn.break_off()
        return
    cancel_statement(conn)
    if isinstance(conn, WatchedConnection):
        conn.drop_watchers()


def _wait_once(conn: PsycopgConnection, events: int) -> None:
    watcher = gevent.get_hub().loop.io(conn.fileno(), events)
    try:
        deadline.wait_for(watcher)
    finally:
        watcher.close()
