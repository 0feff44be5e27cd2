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
BACKEND_END_TIMEOUT_S = 5.0
BACKEND_CHECK_S = 0.1
# The kernel's states of a connection that was reset or timed out, and of one that the server has
# closed, and not yet we.
TCP_CLOSE, TCP_CLOSE_WAIT = 7, 8


def close_and_wait(conn: Connection, cancel: Callable[[int], bool] | None) -> bool | None:
    """
    Close *conn*, cancel its statement, and wait for the end of its backend.

    :param conn: the connection.
    :param cancel: is called with the backend's process id and returns whether that exists; None to
        wait only.
    :returns: whether the backend ended in time; None: unknown, because the network was interrupted.
    """
    if not conn.settled and conn.duplicate_fd is None:
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
        sock = _duplicate(conn)
        if sock is not None:
            stack.enter_context(sock)
        # Asked before the close: what libpq sends then is answered with a reset, and the end of a
        # backend looks like a network that was interrupted.
        has_closed = sock is not None and _tcp_state(sock) == TCP_CLOSE_WAIT
        conn.close()
        if has_closed:
            return True
        if sock is not None:
            # The duplicate keeps the connection open: without this the backend sees no end of its
            # input.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        until = monotonic() + BACKEND_END_TIMEOUT_S
        has_ended = _has_ended(sock, 0.0)
        if busy and cancel is not None:
            # If the network was interrupted, only the result of a cancel shows the end: the backend
            # has ended when there is none to cancel.
            while has_ended is not True and monotonic() < until and cancel(conn.pid):
                has_ended = _has_ended(sock, BACKEND_CHECK_S)
                if has_ended is None:
                    gevent.sleep(BACKEND_CHECK_S)
        if has_ended is False:
            has_ended = _has_ended(sock, until - monotonic())
        return has_ended


def _duplicate(conn: Connection) -> "green_socket.socket | None":
    """Return a duplicate of the connection's socket, None if there is none."""
    descriptor, conn.duplicate_fd = conn.duplicate_fd, None
    if descriptor is None and conn.settled and not conn.closed:
        descriptor = os.dup(conn.fileno())
    return None if descriptor is None else green_socket.socket(fileno=descriptor)


def _has_ended(sock: "green_socket.socket | None", timeout_s: float) -> bool | None:
    """Read until the server's end of file; return None if the connection was reset before it."""
    if sock is None:
        return None
    until = monotonic() + timeout_s
    try:
        while True:
            left_s = max(until - monotonic(), 0.0)
            sock.settimeout(left_s)
            if not sock.recv(65_536):
                # After a loss libpq has already read the socket's error, and an end of file
                # follows; the TCP state still distinguishes the two.
                return None if _tcp_state(sock) == TCP_CLOSE else True
            if left_s == 0.0:
                return False
    except (TimeoutError, BlockingIOError):
        return False
    except OSError:
        # Without a network in between the server has closed its end.
        return True if sock.family == socket.AF_UNIX else None


def _tcp_state(sock: "green_socket.socket") -> int | None:
    """Return the kernel's state of the connection, None for a unix socket."""
    if sock.family == socket.AF_UNIX:
        return None
    return int(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0])
