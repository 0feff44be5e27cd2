"""Judge a connection that comes back, and one that lay idle."""

from select import POLLIN

import psycopg2
from gevent.monkey import get_original
from psycopg2.extensions import (
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_INERROR,
    TRANSACTION_STATUS_INTRANS,
)

from greenline.errors import DeadlineExceeded
from greenline.postgres.connection import Connection

# What one borrower may leave to the next. Not DISCARD ALL: prepared statements stay.
RESET = (
    "close all; unlisten *; select pg_advisory_unlock_all(); discard temp; "
    "reset session authorization; reset all"
)
# gevent's own poll would visit the hub; this one only looks.
_poll = get_original("select", "poll")


def clean(conn: Connection, reset: bool) -> bool:
    """Judge a returned connection by its transaction status, and clean it where that is known."""
    if conn.closed:
        return False
    try:
        if conn.info.transaction_status in (TRANSACTION_STATUS_INTRANS, TRANSACTION_STATUS_INERROR):
            conn.rollback()
        if conn.info.transaction_status != TRANSACTION_STATUS_IDLE:
            return False
        if reset:
            conn.autocommit = True
            with conn.cursor() as cursor:
                cursor.execute(RESET)
    except (psycopg2.Error, DeadlineExceeded):
        return False
    return not conn.closed


def is_dead(conn: Connection) -> bool:
    """An idle server says nothing: something to read is its end, or its last words."""
    if conn.closed:
        return True
    poll = _poll()
    poll.register(conn.fileno(), POLLIN)
    return bool(poll.poll(0))
