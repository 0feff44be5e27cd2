"""
psycopg2's wait callback: wait in the hub, and no longer than the request may.

1. psycogreen's callback makes a watcher for each wait and knows no deadline. This one keeps a
   watcher for each direction of a connection.
2. While connecting there is a new watcher for each wait: libpq's next address is another socket
   under the same number, and an old watcher would wait for the first one for ever.
3. Whatever is raised here, the deadline or a kill, makes psycopg2 close the connection. Its
   socket is kept for the pool, which waits for the backend's end.
"""

from typing import Any

import gevent
import psycopg2
from gevent.socket import wait as wait_on
from psycopg2.extensions import POLL_OK, POLL_READ, POLL_WRITE
from psycopg2.extensions import connection as PsycopgConnection

from greenline import deadline
from greenline.errors import DeadlineExceeded
from greenline.postgres.connection import READ, WRITE, Connection

EVENTS = {POLL_READ: READ, POLL_WRITE: WRITE}


def wait(conn: PsycopgConnection) -> None:
    """
    Return when the operation of *conn* is complete.

    Raises:
        DeadlineExceeded: the request's time is over.
    """
    try:
        while (state := conn.poll()) != POLL_OK:
            if state not in EVENTS:
                raise psycopg2.OperationalError(f"psycopg2 polls {state}")
            _wait_once(conn, EVENTS[state])
    except BaseException:
        if isinstance(conn, Connection):
            conn.break_off()
        raise


def _wait_once(conn: PsycopgConnection, events: int) -> None:
    if isinstance(conn, Connection) and conn.settled:
        _wait_on(conn.watcher(events))
        return
    watcher = gevent.get_hub().loop.io(conn.fileno(), events)
    try:
        _wait_on(watcher)
    finally:
        watcher.close()


def _wait_on(watcher: Any) -> None:
    left_s = deadline.remaining()
    if left_s is None:
        wait_on(watcher)
    elif left_s > 0:
        wait_on(watcher, timeout=left_s, timeout_exc=DeadlineExceeded())
    else:
        raise DeadlineExceeded
