"""
Notice that a client has disconnected, without reading the bytes that it sent.

The client of the current request is in a context variable; without one no check is made. A
half-closed connection counts as disconnected, as in nginx, because a client that has only finished
sending cannot be distinguished from one that has gone.
"""

import select
import socket
from collections.abc import Iterable
from contextvars import ContextVar

from greenline.hub import poll

# Unlike a peek, these events show the end behind unread bytes, and under TLS.
DISCONNECTED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_client: ContextVar[socket.socket | None] = ContextVar("client", default=None)


# Set the socket of the client that this greenlet serves. An alias, not a function of its own:
# every request calls it.
serve = _client.set


def client() -> socket.socket | None:
    """Return the socket of the client that this greenlet serves, None without one."""
    return _client.get()


def is_disconnected(sock: socket.socket | None) -> bool:
    """Return whether the other end of *sock* is closed, without waiting; False for None."""
    # The check costs a system call, so only a request that has to wait makes it.
    if sock is None:
        return False
    if sock.fileno() < 0:
        return True
    return poll.has(sock, DISCONNECTED)


def disconnected(socks: Iterable[socket.socket]) -> list[socket.socket]:
    """Return the sockets of which the other end is closed, without waiting."""
    by_number = {sock.fileno(): sock for sock in socks}
    closed = by_number.pop(-1, None)
    found = [by_number[number] for number in poll.which(by_number, DISCONNECTED)]
    return found if closed is None else [*found, closed]
