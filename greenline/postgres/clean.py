"""
Check a returned connection and an idle one, and reset what a borrower has set.

A session has two sides. The server's state is reset by statements; psycopg2's own (the
characteristics of the next transaction, encoding, types, messages) must be reset in the object.
"""

from select import POLLIN

import psycopg2
from psycopg2.extensions import (
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_INERROR,
    TRANSACTION_STATUS_INTRANS,
)

from greenline.errors import DeadlineExceeded
from greenline.hub import poll
from greenline.postgres.connection import Connection

# psycopg2 sets this when it connects and parses no other dates; RESET ALL undoes it.
ISO_DATES = "set datestyle to iso"


def clean(conn: Connection, reset: bool) -> bool:
    """
    Roll back and reset a returned connection.

    :param conn: the connection.
    :param reset: whether to reset the session as well, bool.
    :returns: whether the connection may be used again.
    """
    if conn.closed:
        return False
    try:
        if conn.info.transaction_status in (TRANSACTION_STATUS_INTRANS, TRANSACTION_STATUS_INERROR):
            conn.roll_back_begun()
        # Active or unknown: a statement is still in progress, or the connection is lost.
        if conn.info.transaction_status != TRANSACTION_STATUS_IDLE:
            return False
        if reset and not _reset(conn):
            return False
    except (psycopg2.Error, DeadlineExceeded):
        return False
    return not conn.closed


def _reset(conn: Connection) -> bool:
    """Reset the session on both sides, and return whether that is complete."""
    if (conn.isolation_level, conn.readonly, conn.deferrable) != (None, None, None):
        conn.isolation_level = conn.readonly = conn.deferrable = None
    conn.autocommit = True  # after those: with autocommit psycopg2 sends a SET for each of them
    conn.cursor_factory = None  # type: ignore[assignment]
    conn.string_types.clear()
    conn.binary_types.clear()
    with conn.cursor() as cursor:
        cursor.execute(conn.reset_statements)
        if not _reported(conn, "DateStyle").startswith("ISO"):
            cursor.execute(ISO_DATES)
    # Last: a notification for the borrower may arrive with the answer.
    conn.notifies, conn.notices = [], []
    # psycopg2 keeps the encoding of set_client_encoding() after RESET ALL, the server does not:
    # such a connection is closed.
    return bool(_reported(conn, "client_encoding").replace("_", "") == conn.encoding)


def _reported(conn: Connection, name: str) -> str:
    """Return a setting as the server last reported it, without a round trip."""
    return conn.get_parameter_status(name) or ""


def is_dead(conn: Connection) -> bool:
    """Return whether an idle connection was closed or has something to read."""
    # An idle server sends nothing but its end, or the message before it.
    return bool(conn.closed) or poll.has(conn, POLLIN)
