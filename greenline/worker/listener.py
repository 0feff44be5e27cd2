"""Accept clients; when there are no descriptors left, pause, say so, and go on."""

import errno
import logging
import math
from time import monotonic
from typing import Any

from gevent.server import StreamServer

from greenline.worker import accept_queue

# This process, or the whole machine, can open no more.
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

TELL_EVERY_S = 60.0
ROOM = 0.1  # the part of worker_connections that is kept free of idle connections
PAUSE_S = 0.2  # somebody has to leave first

log = logging.getLogger(__name__)


class Name:
    """What a listening socket is called, also after it was closed."""

    def __init__(self, name: Any) -> None:
        self._name = name

    def getsockname(self) -> Any:
        return self._name


class Listener(StreamServer):
    """A listening socket; clients wait in its backlog while none can be accepted."""

    _told_s = -TELL_EVERY_S
    _has_left = False

    def do_read(self) -> Any:
        try:
            return super().do_read()
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            if monotonic() - self._told_s >= TELL_EVERY_S:
                log.error("no client can be accepted: %s; see ulimit -n", error.strerror)
                self._told_s = monotonic()
            self.stop_accepting()
            self._timer = self.loop.timer(PAUSE_S)
            self._timer.start(self._accept_again)
            return None

    def missing(self) -> int:
        """Return how many connections should be closed so that new ones find room at once."""
        sockets: Any = self.pool
        return int(math.ceil(sockets.size * ROOM) - sockets.free_count())

    def connected(self) -> int:
        """Return how many clients are connected."""
        sockets: Any = self.pool
        return int(sockets.size - sockets.free_count())

    def unaccepted(self) -> float:
        """Return how many clients wait to be accepted; infinite: more than can be counted."""
        if not self.started:
            return 0
        length = accept_queue.length(self.socket)
        return length if length < math.inf or self.full() else 0

    def _accept_again(self) -> None:
        if self.started:
            self.start_accepting()

    def start_accepting(self) -> None:
        """Begin, or go on: gevent's pool asks for it when it has room again, even after the end."""
        if not self._has_left:
            super().start_accepting()

    def leave(self) -> None:
        """Accept who waits in the backlog, and close before another comes and is reset."""
        while not self.full() and (accepted := self.do_read()):
            self.do_handle(*accepted)
        self._has_left = True
        self.stop_accepting()
        self.socket.close()
