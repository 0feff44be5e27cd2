"""
Wait for psycopg2 in the hub, within the request's deadline.

psycogreen's callback makes a watcher for each wait and has no deadline. This one keeps a watcher
for each direction of a connection, and the request's own timer ends the wait: with a deadline it
costs no more than psycogreen's (``bench.callbacks``).
"""

from collections.abc import Callable
from functools import wraps
from select import POLLOUT

import gevent
import psycopg2
from psycopg2.extensions import (
    POLL_OK,
    POLL_READ,
    POLL_WRITE,
    STATUS_BEGIN,
    STATUS_PREPARED,
    STATUS_READY,
)
from psycopg2.extensions import connection as PsycopgConnection

from greenline.hub import deadline
from greenline.hub.poll import has
from greenline.postgres.cancel import cancel_statement
from greenline.postgres.connection import READ_EVENT, WRITE, Connection, WatchedConnection

Callback = Callable[[PsycopgConnection], None]
EVENTS = {POLL_READ: READ_EVENT, POLL_WRITE: WRITE}
# Before them psycopg2 has numbers without a name.
CONNECTED = (STATUS_READY, STATUS_BEGIN, STATUS_PREPARED)


def wait(conn: PsycopgConnection) -> None:
    """
    Return when the operation of *conn* is complete; psycopg2's wait callback.

    :raises DeadlineExceeded: the request's deadline has passed.
    """
    try:
        with deadline.spending(_what(conn)):
            watched = _watched(conn)
            while (state := conn.poll()) != POLL_OK:
                if state not in EVENTS:
                    raise psycopg2.OperationalError(f"psycopg2 polls {state}")
                # While connecting there is a new watcher for each wait: libpq's next address is
                # another socket with the same descriptor, and a kept watcher would wait for the
                # first one for ever.
                if watched is not None and watched.settled:
                    deadline.wait_for(watched.watcher(EVENTS[state]))
                elif not _has_connected(conn, state):
                    _note_request(conn, state)
                    _wait_once(conn, EVENTS[state])
    except BaseException:
        # psycopg2 closes the connection after any exception, a deadline's or a kill's.
        break_off(conn)
        raise


def wait_for_socket(conn: PsycopgConnection, events: int) -> None:
    """
    Wait until the socket of a connection that is connected is ready.

    :param conn: the connection.
    :param events: READ_EVENT, WRITE or both.
    :raises DeadlineExceeded: the request's deadline has passed.
    """
    watched = _watched(conn)
    with deadline.spending("postgres"):
        if watched is not None:
            deadline.wait_for(watched.watcher(events))
        else:
            _wait_once(conn, events)


def _watched(conn: PsycopgConnection) -> WatchedConnection | None:
    # Watchers of a native thread's loop would outlive it: that loop ends before the connection.
    is_main = gevent.get_hub().main_hub
    return conn if isinstance(conn, WatchedConnection) and is_main else None


def keeping_promises(callback: Callback) -> Callback:
    """
    Return a wait callback that calls *callback* and keeps an interrupted connection's socket, as
    :func:`wait` does.
    """

    @wraps(callback)
    def wait(conn: PsycopgConnection) -> None:
        try:
            _note_request(conn, POLL_READ)  # the callback does not show what it waits for
            with deadline.spending(_what(conn)):
                callback(conn)
        except BaseException:
            break_off(conn)
            raise

    return wait


def break_off(conn: PsycopgConnection) -> None:
    """
    Keep the socket of a pool's connection, to wait for its backend; cancel the statement of
    another.
    """
    if isinstance(conn, Connection):
        conn.break_off()
        return
    cancel_statement(conn)
    if isinstance(conn, WatchedConnection):
        conn.drop_watchers()


def _what(conn: PsycopgConnection) -> str:
    """Return the name of what *conn* spends time on."""
    return "postgres" if conn.status in CONNECTED else "connecting"


def _has_connected(conn: PsycopgConnection, state: int) -> bool:
    """Return whether a connect needs no wait: to the own host the kernel's returns connected."""
    return state == POLL_WRITE and conn.status not in CONNECTED and has(conn, POLLOUT)


def _note_request(conn: PsycopgConnection, state: int) -> None:
    """Note that a connect was requested, once libpq waits for its answer."""
    if state == POLL_READ and isinstance(conn, Connection):
        conn.is_requested = True


def _wait_once(conn: PsycopgConnection, events: int) -> None:
    watcher = gevent.get_hub().loop.io(conn.fileno(), events)
    try:
        deadline.wait_for(watcher)
    finally:
        watcher.close()
