"""
Notice that a client hung up, without reading what it sent.

1. Who serves a request says which socket it came on; without one, nobody is asked.
2. A half-closed connection counts as hung up, as it does for nginx: nobody can tell a client that
   only has no more to say from one that is gone.
3. Looking costs a system call, so only who has to wait looks.
"""

import select
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import gevent

from greenline.hub import poll

READ_EVENT = 1  # libev's event
# Unlike a peek it sees the end behind bytes that nobody has read yet, and under TLS.
HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_client: ContextVar[socket.socket | None] = ContextVar("client", default=None)


# Say that this greenlet works for the client at the other end of a socket from now on. No function
# of ours: every request calls it.
serve = _client.set


def client() -> socket.socket | None:
    """Return the socket of the client that this greenlet works for."""
    return _client.get()


def is_disconnected(sock: socket.socket | None) -> bool:
    """Return whether the other end is closed, at once; never when there is none."""
    if sock is None:
        return False
    if sock.fileno() < 0:
        return True
    return poll.has(sock, HANGUP)


def gone(socks: Iterable[socket.socket]) -> list[socket.socket]:
    """Return those whose other end is closed, at once."""
    by_number = {sock.fileno(): sock for sock in socks}
    closed = by_number.pop(-1, None)
    found = [by_number[number] for number in poll.which(by_number, HANGUP)]
    return found if closed is None else [*found, closed]


@contextmanager
def watching(sock: socket.socket | None, call: Callable[[], object]) -> Iterator[None]:
    """
    *call* in the hub when the client hangs up during the block.

    Unless it sent something before that: who leaves the block looks with :func:`is_disconnected`.
    """
    if sock is None or sock.fileno() < 0:
        yield
        return
    watcher = gevent.get_hub().loop.io(sock.fileno(), READ_EVENT)

    def look() -> None:
        watcher.stop()  # with bytes to read it would be called again and again
        if is_disconnected(sock):
            call()

    watcher.start(look)
    try:
        yield
    finally:
        watcher.close()
