"""
Judge a connection that comes back, and one that lay idle.

The session has two sides. What the server holds is reset by statements; what psycopg2 holds (the
next transaction's characteristics, the encoding, types, messages) no statement resets.
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

# What one borrower may leave to the next. Not DISCARD ALL: prepared statements stay.
RESET = (
    "close all; unlisten *; select pg_advisory_unlock_all(); discard temp; discard sequences; "
    "reset session authorization; reset all"
)
# What psycopg2 says when it connects, and what RESET ALL takes back: it reads no other dates.
ISO_DATES = "set datestyle to iso"


def clean(conn: Connection, reset: bool) -> bool:
    """Judge a returned connection by its transaction status, and clean it where that is known."""
    if conn.closed:
        return False
    try:
        if conn.info.transaction_status in (TRANSACTION_STATUS_INTRANS, TRANSACTION_STATUS_INERROR):
            conn.rollback()
        if conn.info.transaction_status != TRANSACTION_STATUS_IDLE:
            return False
        if reset and not _reset(conn):
            return False
    except (psycopg2.Error, DeadlineExceeded):
        return False
    return not conn.closed


def _reset(conn: Connection) -> bool:
    """Make the session as new, on both sides, and return whether it is."""
    if (conn.isolation_level, conn.readonly, conn.deferrable) != (None, None, None):
        conn.isolation_level = conn.readonly = conn.deferrable = None
    conn.autocommit = True  # not before: with it psycopg2 tells the server each of those
    conn.cursor_factory = None  # type: ignore[assignment]
    conn.string_types.clear()
    conn.binary_types.clear()
    with conn.cursor() as cursor:
        cursor.execute(RESET)
        if not _reported(conn, "DateStyle").startswith("ISO"):
            cursor.execute(ISO_DATES)
    # Last: a notification of the borrower's may arrive with the answer.
    conn.notifies, conn.notices = [], []
    # psycopg2 goes on in the encoding that set_client_encoding() told it, the server does not.
    return bool(_reported(conn, "client_encoding").replace("_", "") == conn.encoding)


def _reported(conn: Connection, name: str) -> str:
    """Return a setting as the server last reported it: no question is asked."""
    return conn.get_parameter_status(name) or ""


def is_dead(conn: Connection) -> bool:
    """An idle server says nothing: something to read is its end, or its last words."""
    return bool(conn.closed) or poll.has(conn, POLLIN)
