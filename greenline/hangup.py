"""
Notice that a client hung up, without reading what it sent.

1. Who serves a request says which socket it came on; without one, nobody is asked.
2. A half-closed connection counts as hung up, as it does for nginx: nobody can tell a client that
   only has no more to say from one that is gone.
3. Looking costs a system call, so only who has to wait looks.
"""

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from socket import socket

import gevent
from gevent.monkey import get_original

READ = 1  # libev's event
# Unlike a peek it sees the end behind bytes that nobody has read yet, and under TLS.
HANGUP = select.POLLRDHUP | select.POLLHUP | select.POLLERR
# gevent's own poll would visit the hub; this one only looks.
_poll = get_original("select", "poll")

_client: ContextVar[socket | None] = ContextVar("client", default=None)


@contextmanager
def serving(sock: socket | None) -> Iterator[None]:
    """Say that the block works for the client at the other end of *sock*."""
    token = _client.set(sock)
    try:
        yield
    finally:
        _client.reset(token)


def client() -> socket | None:
    """Return the socket of the client that this greenlet works for."""
    return _client.get()


def is_gone(sock: socket | None) -> bool:
    """Return whether the other end is closed, at once; never when there is none."""
    if sock is None:
        return False
    if sock.fileno() < 0:
        return True
    poll = _poll()
    poll.register(sock, HANGUP)
    return bool(poll.poll(0))


@contextmanager
def noticing(sock: socket | None, call: Callable[[], object]) -> Iterator[None]:
    """
    *call* in the hub when the client hangs up during the block.

    Unless it sent something before that: who leaves the block looks with :func:`is_gone`.
    """
    if sock is None or sock.fileno() < 0:
        yield
        return
    watcher = gevent.get_hub().loop.io(sock.fileno(), READ)

    def look() -> None:
        watcher.stop()  # with bytes to read it would be called again and again
        if is_gone(sock):
            call()

    watcher.start(look)
    try:
        yield
    finally:
        watcher.close()
