"""
Notice that an application has taken its client's socket over, as for a WebSocket.

Such an application answers the upgrade by itself, over ``environ["gunicorn.socket"]``. The socket
stays the object that it is; until the first send it has a class that notes the send.
"""

from functools import lru_cache
from typing import Any


class _Untaken:
    """Mixed into the class of a socket over which the application has sent nothing yet."""

    __slots__ = ()  # else the class of a socket could not be replaced


def watch(sock: Any) -> None:
    """
    Watch for what the application sends over *sock*.

    :param sock: gevent's socket, with TLS or without.
    """
    own: Any = type(sock)
    sock.__class__ = _untaken(own)


def is_taken(sock: Any) -> bool:
    """Return whether something was sent over *sock* since :func:`watch`."""
    return not isinstance(sock, _Untaken)


def unwatch(sock: Any) -> None:
    """End what :func:`watch` began."""
    if isinstance(sock, _Untaken):
        watching: Any = type(sock)
        sock.__class__ = watching.__base__


@lru_cache
def _untaken(base: Any) -> type:
    class Untaken(base, _Untaken):  # type: ignore[misc]
        __slots__ = ()

        def send(self, *args: Any, **kwargs: Any) -> int:  # sendall() calls it as well
            unwatch(self)  # a second time where the application keeps this method
            sent: int = base.send(self, *args, **kwargs)
            return sent

        def sendmsg(self, *args: Any, **kwargs: Any) -> int:
            unwatch(self)
            sent: int = base.sendmsg(self, *args, **kwargs)
            return sent

    return Untaken
