"""
See a closed connection off: its slot is free when its backend is gone, and not before.

After a close the server still counts the backend for a moment; one in mid-statement works on.
A duplicate of the descriptor stays open, and shows the server's end of file.
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

# A backend that a cancel does not reach (an uninterruptible write) is given up after this.
GONE_TIMEOUT_S = 5.0
BACKEND_CHECK_S = 0.1
TCP_CLOSE = 7  # of the kernel's states: nothing is known of the peer


def leave(conn: Connection, cancel: Callable[[int], bool] | None) -> bool | None:
    """
    Close *conn*, stop what its backend does, and return whether that is gone in time.

    None is not to be seen: the network was cut. *cancel* takes the backend's process id and returns
    whether it was there.
    """
    if not conn.settled and conn.farewell is None:
        # libpq ended the connect by itself: if there was a backend, it was told, or told us.
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
            # Where the network was cut nothing is seen: it is gone when there is nobody to cancel.
            while gone is not True and monotonic() < until and cancel(conn.pid):
                gone = _gone(goodbye, BACKEND_CHECK_S)
        if gone is False:
            gone = _gone(goodbye, until - monotonic())
        return gone


def _goodbye(conn: Connection) -> "green_socket.socket | None":
    """Close *conn* and return a duplicate of its socket, None when that is gone."""
    descriptor, conn.farewell = conn.farewell, None
    if descriptor is None and conn.settled and not conn.closed:
        descriptor = os.dup(conn.fileno())
    conn.close()
    if descriptor is None:
        return None
    goodbye = green_socket.socket(fileno=descriptor)
    with suppress(OSError):
        goodbye.shutdown(socket.SHUT_WR)
    return goodbye


def _gone(goodbye: "green_socket.socket | None", timeout_s: float) -> bool | None:
    """Read until the server's end of file; None when the network was cut before it."""
    if goodbye is None:
        gevent.sleep(timeout_s)
        return None
    until = monotonic() + timeout_s
    try:
        while True:
            left_s = max(until - monotonic(), 0.0)
            goodbye.settimeout(left_s)
            if not goodbye.recv(65_536):
                # At a loss libpq has taken the error away: the end that was told is another state.
                return None if _was_cut(goodbye) else True
            if left_s == 0.0:
                return False
    except (TimeoutError, BlockingIOError):
        return False
    except OSError:
        if goodbye.family == socket.AF_UNIX:  # no network in between: its end is closed
            return True
        gevent.sleep(timeout_s)
        return None


def _was_cut(goodbye: "green_socket.socket") -> bool:
    """Return whether the connection ended without the server's end of file: reset, or timed out."""
    if goodbye.family == socket.AF_UNIX:
        return False
    state = goodbye.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return bool(state == TCP_CLOSE)
