"""
Notice that an application has taken over its client's socket, as for a WebSocket.

Such an application answers the upgrade itself, over ``environ["gunicorn.socket"]``. The socket
object stays the same; until the first send it has a class that notes the send.
"""

from functools import lru_cache
from typing import Any


class _Untaken:
    """Marks the class of a socket over which the application has sent nothing yet."""

    __slots__ = ()  # __class__ can be set only if the layout of both classes is the same


def watch(sock: Any) -> None:
    """
    Watch for the first send of the application over *sock*; do nothing if it is watched.

    :param sock: gevent's socket, with TLS or without.
    """
    if is_taken(sock):
        own: Any = type(sock)
        sock.__class__ = _untaken(own)


def is_taken(sock: Any) -> bool:
    """Return whether something was sent over *sock* since :func:`watch`."""
    return not isinstance(sock, _Untaken)


def unwatch(sock: Any) -> None:
    """Give *sock* its own class back; do nothing if it has it."""
    if isinstance(sock, _Untaken):
        watching: Any = type(sock)
        sock.__class__ = watching.__base__


@lru_cache
def _untaken(base: Any) -> type:
    class Untaken(base, _Untaken):  # type: ignore[misc]
        __slots__ = ()

        def send(self, *args: Any, **kwargs: Any) -> int:  # sendall() calls it as well
            unwatch(self)  # called again where the application kept this bound method
            sent: int = base.send(self, *args, **kwargs)
            return sent

        def sendmsg(self, *args: Any, **kwargs: Any) -> int:
            unwatch(self)
            sent: int = base.sendmsg(self, *args, **kwargs)
            return sent

        def dup(self) -> Any:
            unwatch(self)  # it may be sent over the other one
            return base.dup(self)

        def detach(self) -> int:
            unwatch(self)
            return int(base.detach(self))

    return Untaken
