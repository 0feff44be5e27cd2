"""
Let gevent's sockets do what those of the standard library do, where gevent's own differ.

1. ``recv(1, MSG_DONTWAIT | MSG_PEEK)``, by which clients ask whether their server is there, is no
   wait.
2. After ``shutdown()`` a reader that waits in another greenlet finds the end of the stream, and not
   EBADF: servers and clients that run in a thread are ended so.
"""

import socket
from collections.abc import Callable
from functools import wraps
from typing import Any

from greenline.hub.gevent_compat import _Socket


def install() -> None:
    """Replace gevent's methods; call it after gevent's patches."""
    # Where the flags stand, behind the size, or the buffer and the size.
    for name, flags_at in (("recv", 1), ("recv_into", 2)):
        setattr(_Socket, name, _unless_flagged(name, flags_at, getattr(_Socket, name)))
    _Socket.shutdown = _shutdown_by(_Socket.shutdown)  # type: ignore[method-assign]


def _unless_flagged(name: str, flags_at: int, wait: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(wait)
    def receive(self: Any, *args: Any) -> Any:
        if len(args) == flags_at + 1 and args[flags_at] & socket.MSG_DONTWAIT:
            return getattr(self._sock, name)(*args)
        return wait(self, *args)

    return receive


def _shutdown_by(cancel_waits: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    @wraps(cancel_waits)
    def shutdown(self: Any, how: int) -> None:
        # One with TLS has forgotten its state: what waits there could not go on. And no event says
        # that nothing more can be sent.
        if how == socket.SHUT_WR or hasattr(self, "_sslobj"):
            cancel_waits(self, how)
        else:
            self._sock.shutdown(how)

    return shutdown
