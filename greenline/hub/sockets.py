"""
Let gevent's sockets do what those of the standard library do, where gevent's own differ.

1. What is asked with MSG_DONTWAIT is no wait: by ``recv(1, MSG_DONTWAIT | MSG_PEEK)`` clients look
   whether their server is there.
2. After ``shutdown()`` a reader that waits in another greenlet finds the end of the stream, and not
   EBADF: servers and clients that run in a thread are ended so.
3. A connection to the own host is made, or refused, when the kernel's ``connect`` returns. gevent
   would register the socket, wait and remove it, for an event that is there.
"""

import socket
from collections.abc import Callable
from errno import EALREADY, EINPROGRESS, EISCONN
from functools import wraps
from os import strerror
from typing import Any

from greenline.hub.gevent_compat import _Socket

# Where the flags stand, behind the size, or the buffer and the size, or what is sent.
FLAGS_AT = {"recv": 1, "recv_into": 2, "recvfrom": 1, "recvfrom_into": 2, "send": 1}

OWN_HOST = ("127.0.0.1",), ("::1",)  # numbers: a name would be looked up, and block the hub


def install() -> None:
    """Replace gevent's methods; call it after gevent's patches."""
    for name, flags_at in FLAGS_AT.items():
        setattr(_Socket, name, _unless_flagged(name, flags_at, getattr(_Socket, name)))
    _Socket.shutdown = _shutdown_by(_Socket.shutdown)  # type: ignore[method-assign]
    _Socket.connect = _connect_by(_Socket.connect)  # type: ignore[method-assign]


def _unless_flagged(name: str, flags_at: int, wait: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(wait)
    def unless_flagged(self: Any, *args: Any, **more: Any) -> Any:  # gevent's own calls have more
        # With a timeout the standard library waits all the same.
        has_flags = len(args) == flags_at + 1 and args[flags_at] & socket.MSG_DONTWAIT
        if has_flags and self.timeout is None:
            return getattr(self._sock, name)(*args)
        return wait(self, *args, **more)

    return unless_flagged


def _shutdown_by(cancel_waits: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    @wraps(cancel_waits)
    def shutdown(self: Any, how: int) -> None:
        # One with TLS has forgotten its state: what waits there could not go on. No event says that
        # nothing more can be sent, and one of datagrams has nothing to read and no end.
        has_end = self.type == socket.SOCK_STREAM and not hasattr(self, "_sslobj")
        if has_end and how != socket.SHUT_WR:
            self._sock.shutdown(how)
        else:
            cancel_waits(self, how)

    return shutdown


def _connect_by(wait: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @wraps(wait)
    def connect(self: Any, address: Any) -> None:
        if type(address) is not tuple or address[:1] not in OWN_HOST or self.timeout == 0.0:
            wait(self, address)
            return
        result = self._sock.connect_ex(address)
        if result == EINPROGRESS:  # it says that of one that is refused already, too
            result = self._sock.connect_ex(address)
        if result in (EALREADY, EINPROGRESS):  # the server's backlog is full
            wait(self, address)
        elif result and result != EISCONN:
            raise OSError(result, strerror(result))

    return connect
