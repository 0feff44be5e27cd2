"""
Notice that a client has disconnected, without reading the bytes that it sent.

The client of the current request is in a context variable; without one no check is made. A
half-closed connection counts as disconnected, as in nginx, because a client that has only finished
sending cannot be distinguished from one that has gone.
"""

import select
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import gevent

from greenline.hub import poll

READ_EVENT = 1  # libev's event
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


@contextmanager
def watching(sock: socket.socket | None, call: Callable[[], object]) -> Iterator[None]:
    """
    Call *call* in the hub when the client disconnects during the block.

    A client that sends something first is not noticed: check with :func:`is_disconnected` after
    the block.

    :param sock: the client's socket; None or a closed one is not watched.
    :param call: called once, without arguments; it must not wait.
    """
    if sock is None or sock.fileno() < 0:
        yield
        return
    watcher = gevent.get_hub().loop.io(sock.fileno(), READ_EVENT)

    def check_socket() -> None:
        # Unread bytes would make this run in every round of the loop.
        watcher.stop()
        if is_disconnected(sock):
            call()

    watcher.start(check_socket)
    try:
        yield
    finally:
        watcher.close()
