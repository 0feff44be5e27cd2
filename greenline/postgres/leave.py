"""
Close a connection and wait until its backend has ended.

After a close the server still counts the backend for a moment, and a backend that executes a
statement continues. So a duplicate of the descriptor stays open, on which the server's end of file
is read.
"""

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from time import monotonic

import gevent
from gevent import socket as green_socket
from psycopg2.extensions import TRANSACTION_STATUS_ACTIVE

from greenline.postgres.connection import Connection

# Seconds to wait for a backend, which may be in a write that a cancel does not interrupt.
GONE_TIMEOUT_S = 5.0
BACKEND_CHECK_S = 0.1
TCP_CLOSE = 7  # the kernel's state of a connection that was reset or timed out


def leave(conn: Connection, cancel: Callable[[int], bool] | None) -> bool | None:
    """
    Close *conn*, cancel its statement, and wait for the end of its backend.

    :param conn: the connection.
    :param cancel: is called with the backend's process id and returns whether that exists; None to
        wait only.
    :returns: whether the backend ended in time; None: unknown, because the network was interrupted.
    """
    if not conn.settled and conn.farewell is None:
        # libpq ended the connect itself, after an error from the server or a message to it, and has
        # closed the socket, on which the end of the backend would be seen. A deliberate limit: such
        # a backend is about to exit and no statement keeps it, so it gets a fixed time. To ask the
        # server would take a connection, while it may be refusing them. If the backend takes
        # longer, the server may have one connection more than the slots count, until it exits.
        conn.close()
        gevent.sleep(BACKEND_CHECK_S)
        return True
    busy = conn.busy or conn.info.transaction_status == TRANSACTION_STATUS_ACTIVE
    with ExitStack() as stack:
        goodbye = _goodbye(conn)
        if goodbye is not None:
            stack.enter_context(goodbye)
        until = monotonic() + GONE_TIMEOUT_S
        gone = _gone(goodbye, 0.0)
        if busy and cancel is not None:
            # If the network was interrupted, only the result of a cancel shows the end: the backend
            # has ended when there is none to cancel.
            while gone is not True and monotonic() < until and cancel(conn.pid):
                gone = _gone(goodbye, BACKEND_CHECK_S)
        if gone is False:
            gone = _gone(goodbye, until - monotonic())
        return gone


def _goodbye(conn: Connection) -> "green_socket.socket | None":
    """Close *conn* and return a duplicate of its socket, None if there is none."""
    descriptor, conn.farewell = conn.farewell, None
    if descriptor is None and conn.settled and not conn.closed:
        descriptor = os.dup(conn.fileno())
    conn.close()
    if descriptor is None:
        return None
    goodbye = green_socket.socket(fileno=descriptor)
    # The duplicate keeps the connection open: without this the backend sees no end of its input.
    with suppress(OSError):
        goodbye.shutdown(socket.SHUT_WR)
    return goodbye


def _gone(goodbye: "green_socket.socket | None", timeout_s: float) -> bool | None:
    """Read until the server's end of file; return None if the network was cut before it."""
    if goodbye is None:
        gevent.sleep(timeout_s)
        return None
    until = monotonic() + timeout_s
    try:
        while True:
            left_s = max(until - monotonic(), 0.0)
            goodbye.settimeout(left_s)
            if not goodbye.recv(65_536):
                # After a loss libpq has already read the socket's error, and an end of file
                # follows; the TCP state still distinguishes the two.
                return None if _was_cut(goodbye) else True
            if left_s == 0.0:
                return False
    except (TimeoutError, BlockingIOError):
        return False
    except OSError:
        if goodbye.family == socket.AF_UNIX:  # no network in between: the server closed its end
            return True
        gevent.sleep(timeout_s)
        return None


def _was_cut(goodbye: "green_socket.socket") -> bool:
    """Return whether the connection was reset or timed out, before the server's end of file."""
    if goodbye.family == socket.AF_UNIX:
        return False
    state = goodbye.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return bool(state == TCP_CLOSE)
