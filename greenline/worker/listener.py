"""Accept clients; pause when the process has no file descriptors left."""

import errno
import logging
import math
from collections.abc import Callable
from time import monotonic
from typing import Any

from gevent.pool import Pool
from gevent.server import StreamServer

from greenline.worker import accept_queue

# This process, or the whole host, can open no more descriptors.
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

EXHAUSTED_LOG_EVERY_S = 60.0
ROOM = 0.1  # part of worker_connections that is kept free of idle connections
PAUSE_S = 0.2  # until a descriptor may be free

log = logging.getLogger(__name__)


class Name:
    """
    The name of a listening socket, also after that was closed.

    :param name: the result of its ``getsockname()``.
    """

    def __init__(self, name: Any) -> None:
        self._name = name

    def getsockname(self) -> Any:
        return self._name


class Clients(Pool):
    """
    The clients of a listener: greenlets of the pool, and clients without one.

    :param size: how many there may be, int.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.most = size
        self._places: Any = self._semaphore  # type: ignore[attr-defined]  # gevent's server has it

    def free_count(self) -> int:
        # The pool counts its greenlets.
        return int(self._places.counter)

    def enter(self) -> None:
        """Count a client without a greenlet; there has to be room."""
        self._places.acquire()

    def leave(self) -> None:
        """Count it no more; a listener that was full accepts again."""
        self._places.release()


class Listener(StreamServer):
    """
    A listening socket; clients wait in its backlog while none can be accepted.

    :param listener: the socket.
    :param handle: serves a client in a greenlet of *clients*.
    :param begin: serves a client without one; returns False if it needs one.
    :param clients: those that are connected.
    :param tls: gevent's arguments for TLS.
    """

    _logged_s = -EXHAUSTED_LOG_EVERY_S
    _has_left = False

    def __init__(
        self,
        listener: Any,
        handle: Callable[..., None],
        begin: Callable[..., bool],
        clients: Clients,
        **tls: Any,
    ) -> None:
        super().__init__(listener, handle, spawn=clients, **tls)
        self.clients, self._begin = clients, begin

    def do_read(self) -> Any:
        try:
            return super().do_read()
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            # gevent would write a traceback for each attempt.
            if monotonic() - self._logged_s >= EXHAUSTED_LOG_EVERY_S:
                log.error("no client can be accepted: %s; see ulimit -n", error.strerror)
                self._logged_s = monotonic()
            self.stop_accepting()
            self._timer = self.loop.timer(PAUSE_S)
            self._timer.start(self._accept_again)
            return None

    def do_handle(self, *args: Any) -> None:
        # gevent makes the TLS handshake in the client's greenlet.
        if self.ssl_enabled or not self._begin(*args):
            super().do_handle(*args)

    def missing(self) -> int:
        """Return how many idle connections to close so that there is room for new ones."""
        return math.ceil(self.clients.most * ROOM) - self.clients.free_count()

    def connected(self) -> int:
        """Return how many clients are connected."""
        return self.clients.most - self.clients.free_count()

    def unaccepted(self) -> float:
        """Return how many clients wait to be accepted; infinite if they cannot be counted."""
        if not self.started:
            return 0
        # Infinite: full, or unknown. While this worker accepts clients the queue soon empties.
        length = accept_queue.length(self.socket)
        return length if length < math.inf or self.full() else 0

    def _accept_again(self) -> None:
        if self.started:
            self.start_accepting()

    def start_accepting(self) -> None:
        """Start or continue to accept."""
        # gevent's pool calls this when it has room again, even after leave().
        if not self._has_left:
            super().start_accepting()

    def leave(self) -> None:
        """Accept the clients in the backlog, then close the socket."""
        # A close resets the clients in the backlog, so no greenlet switch between the last accept
        # and the close.
        while not self.full() and (accepted := self.do_read()):
            self.do_handle(*accepted)
        self._has_left = True
        self.stop_accepting()
        self.socket.close()
