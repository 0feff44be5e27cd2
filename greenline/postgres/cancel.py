"""
Cancel the statement of a connection that psycopg2 is about to close: its wait was broken off.

Without it the server goes on until it has something to send. The pool cancels over its control
connection; hosted code that calls ``psycopg2.connect`` has none. psycopg2's own ``cancel()`` blocks
every greenlet: it connects to the server with the interpreter's lock held. So libpq is called
directly, without that lock, in a native thread. The threads are not those of gevent's pool, which
DNS look-ups need: a server that does not answer holds one of them for minutes.
"""

import ctypes
from functools import cache
from typing import Any

import gevent
import psycopg2
from gevent.threadpool import ThreadPool
from psycopg2.extensions import TRANSACTION_STATUS_ACTIVE
from psycopg2.extensions import connection as PsycopgConnection

THREADS = 4
ERROR_BYTES = 256  # what libpq's documentation recommends


def cancel_statement(conn: PsycopgConnection) -> None:
    """Have the statement in progress cancelled, if there is one; return at once."""
    if conn.info.transaction_status != TRANSACTION_STATUS_ACTIVE:
        return
    # A copy of the address and of the backend's key: it outlives the connection.
    request = _libpq().PQgetCancel(conn.pgconn_ptr)
    if request:
        gevent.spawn(_threads().apply, _send, (request,))


def _send(request: int) -> None:
    """Run in a native thread: connect to the server, send the request, and wait for its end."""
    libpq = _libpq()
    libpq.PQcancel(request, ctypes.create_string_buffer(ERROR_BYTES), ERROR_BYTES)
    libpq.PQfreeCancel(request)


@cache
def _threads() -> ThreadPool:
    return ThreadPool(THREADS)


@cache
def _libpq() -> Any:
    """Return the libpq that psycopg2 is linked with: another one cannot read its pointers."""
    libpq = ctypes.CDLL(psycopg2._psycopg.__file__)
    libpq.PQgetCancel.argtypes = [ctypes.c_void_p]
    libpq.PQgetCancel.restype = ctypes.c_void_p
    libpq.PQcancel.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    libpq.PQfreeCancel.argtypes = [ctypes.c_void_p]
    return libpq
