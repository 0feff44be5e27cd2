"""
See a closed connection off: its slot is free when its backend is gone, and not before.

After a close the server still counts the backend for a moment; one in mid-statement works on.
A duplicate of the descriptor stays open, and shows the server's end of file.
"""

import os
import socket
from contextlib import suppress

from gevent import socket as green_socket
from psycopg2.extensions import TRANSACTION_STATUS_ACTIVE

from greenline.postgres.cancel import Canceller
from greenline.postgres.connection import Connection

# A backend that a cancel does not reach (an uninterruptible write) is given up after this.
GONE_TIMEOUT_S = 5.0


def leave(conn: Connection, canceller: Canceller | None) -> bool:
    """Close *conn*, stop what its backend does, and return whether it is gone in time."""
    descriptor, busy = _part_with(conn)
    if descriptor is None:
        return True
    with green_socket.socket(fileno=descriptor) as goodbye:
        with suppress(OSError):
            goodbye.shutdown(socket.SHUT_WR)
        if busy and canceller is not None and not _gone(goodbye, 0.0):
            canceller.cancel(conn.pid)
        return _gone(goodbye, GONE_TIMEOUT_S)


def _part_with(conn: Connection) -> tuple[int | None, bool]:
    """Close *conn* and return a duplicate of its descriptor, and whether it was in mid-work."""
    if conn.farewell is not None:
        descriptor, conn.farewell = conn.farewell, None
        conn.close()
        return descriptor, conn.busy
    if conn.closed or not conn.settled:
        conn.close()
        return None, False
    busy = conn.info.transaction_status == TRANSACTION_STATUS_ACTIVE
    descriptor = os.dup(conn.fileno())
    conn.close()
    return descriptor, busy


def _gone(goodbye: "green_socket.socket", timeout_s: float) -> bool:
    """Read until the server's end of file."""
    goodbye.settimeout(timeout_s)
    try:
        while goodbye.recv(8192):
            pass
    except (TimeoutError, BlockingIOError):
        return False
    except OSError:
        pass  # reset: gone as well
    return True
