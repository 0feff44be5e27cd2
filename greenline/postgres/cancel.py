"""
Cancel the statement of a connection that psycopg2 closes because its wait was interrupted.

Without a cancel the server works on until it has something to send. The pool cancels over its
control connection, which hosted code that calls ``psycopg2.connect`` does not have. psycopg2's own
``cancel()`` connects to the server with the interpreter's lock held and so blocks every greenlet;
libpq is called directly instead, without that lock, in a native thread.
"""

import ctypes
from functools import cache

import gevent
from gevent.threadpool import ThreadPool
from psycopg2.extensions import TRANSACTION_STATUS_ACTIVE
from psycopg2.extensions import connection as PsycopgConnection

from greenline.postgres.psycopg2_compat import libpq

THREADS = 4
ERROR_BYTES = 256  # as libpq's documentation recommends


def cancel_statement(conn: PsycopgConnection) -> None:
    """Request the cancel of the statement in progress, if there is one; return at once."""
    if libpq is None or conn.info.transaction_status != TRANSACTION_STATUS_ACTIVE:
        return
    # A copy of the address and of the backend's key, which may be used after the close.
    request = libpq.PQgetCancel(conn.pgconn_ptr)
    if request:
        gevent.spawn(_threads().apply, _send, (request,))


def _send(request: int) -> None:
    """Connect to the server, send the request and wait for its end, in a native thread."""
    libpq.PQcancel(request, ctypes.create_string_buffer(ERROR_BYTES), ERROR_BYTES)
    libpq.PQfreeCancel(request)


@cache
def _threads() -> ThreadPool:
    # Not gevent's own pool, which DNS look-ups need: a server that does not answer holds a thread
    # for minutes.
    return ThreadPool(THREADS)
