"""
Hold a worker's MongoClient, and exchange it for a larger one when there is room.

A client's ``maxPoolSize`` cannot change, so a pool grows by a new client. A worker that starts
while the old workers still hold their connections begins with the smallest pool.
"""

import logging
from collections.abc import Callable
from random import uniform
from time import monotonic

import gevent
import pymongo

from greenline.budget.plan import MONGODB_EXCHANGE, MONGODB_EXTRA_A_WORKER
from greenline.hub.periodic import keep_doing
from greenline.mongo.driver import LimitedClient
from greenline.mongo.permits import Permits

EXCHANGE_CHECK_S = 0.5
# The pause between two checks whether an old client has users, or open sockets.
EXCHANGE_TIMEOUT_S = 0.02
CLIENT_CLOSE_S = 1.0
MONITORS = MONGODB_EXCHANGE["its monitors"]

log = logging.getLogger(__name__)


class Clients:
    """
    Hold the client in use and those that are being opened or closed.

    :param permits: the :class:`Permits` of this worker.
    :param make: a callable that returns an unconnected client for a maxPoolSize.
    :param warm: a callable that opens the ``minPoolSize`` connections of a client.
    :param name: the pool's name in log lines, str, default ``mongodb``.
    """

    def __init__(
        self,
        permits: Permits,
        make: Callable[[int], LimitedClient],
        warm: Callable[[LimitedClient], None],
        name: str = "mongodb",
    ) -> None:
        self.current: LimitedClient | None = None
        self._permits = permits
        self._make = make
        self._warm = warm
        self._name = name
        self._size = self._wanted = 0
        self._others: set[LimitedClient] = set()
        self._looking: gevent.Greenlet[..., None] | None = None

    def __repr__(self) -> str:
        return f"<Clients size={self._size} wanted={self._wanted} others={len(self._others)}>"

    def begin(self, min_size: int) -> bool:
        """Return whether there are permits for a pool of *min_size*; start the periodic check."""
        # Started even without permits: it also frees those of killed workers.
        if self._looking is None and self._permits.are_counted:
            self._looking = keep_doing(
                self.look,
                # Random, so that the workers of a host do not compete at the same moments.
                lambda: uniform(EXCHANGE_CHECK_S / 2, EXCHANGE_CHECK_S),  # noqa: S311
                "looking after the connections to MongoDB",
            )
        self._permits.use_published()
        if self._permits.take(MONGODB_EXTRA_A_WORKER + min_size):
            return True
        self._permits.request()
        return False

    def open(self, min_size: int, wanted: int) -> LimitedClient:
        """
        Return the client in use; make one if there is none.

        :param min_size: the size without room for more, int.
        :param wanted: the size of the worker's whole share, int.
        """
        has_room = self._permits.take(MONGODB_EXTRA_A_WORKER + wanted)
        size = wanted if has_room else min_size
        client = self._make(size)
        # Another greenlet may have been faster. An unused client has no socket to close.
        if self.current is None:
            self.current, self._size, self._wanted = client, size, wanted
            if size < wanted:
                sized = _connections(size)
                log.info("%s pool: %s until the old workers are gone", self._name, sized)
            else:
                log.debug("%s pool: %s", self._name, _connections(size))
        return self.current

    def open_fixed(self, min_size: int, size: int) -> LimitedClient:
        """
        Return the client in use, of the size that the URI sets; there need not be room for it.

        :param min_size: the size that is counted when *size* is 0, int.
        :param size: maxPoolSize of the URI, int; 0 is unlimited.
        """
        self.current = self.current or self._make(size)
        self._size = self._wanted = size or min_size
        needed = MONGODB_EXTRA_A_WORKER + self._size
        has_room = self._permits.take(needed)
        if size == 0:
            log.warning(
                "%s pool: maxPoolSize in MONGODB_URI is unlimited, the server is not", self._name
            )
        elif not has_room:
            log.warning(
                "%s pool: maxPoolSize in MONGODB_URI is not ours to change: this worker may "
                "connect %d times, %d times more than it should now",
                self._name,
                needed,
                needed - self._permits.held,
            )
        return self.current

    def look(self) -> None:
        """
        Free the permits of killed workers, and exchange the client if there is room.

        :raises GreenlineError: the server cannot be reached; the old client stays in use.
        """
        self._permits.settle()
        # One exchange at a time: it needs permits for both clients.
        if self.current is None or self._others:
            return
        needed = MONGODB_EXTRA_A_WORKER + self._wanted
        if self._size < self._wanted:
            if self._permits.take(needed + self._size + MONITORS):
                self._exchange(self.current, needed)
        else:
            # A client of a fixed size may have been opened without enough permits.
            self._permits.take(needed)

    def close(self, *additional: LimitedClient) -> None:
        """Close all clients, and *additional*, without waiting for an unreachable server."""
        if self._looking is not None:
            self._looking.kill()
        clients = [*additional, *self._others, *filter(None, [self.current])]
        for client in clients:
            close(client)
        if not self._permits.are_counted:
            return
        # A permit may be given back only when its socket is closed, and monitors close late.
        until = monotonic() + CLIENT_CLOSE_S
        while any(client.sockets.count() for client in clients):
            if monotonic() >= until:
                return  # the sockets end with the process; another worker frees its permits
            gevent.sleep(EXCHANGE_TIMEOUT_S)
        self._permits.keep(0)

    def _exchange(self, old: LimitedClient, needed: int) -> None:
        new = self._make(self._wanted)
        self._others.add(new)
        try:
            # Before it is used: otherwise a burst would wait for its connects.
            self._warm(new)
        except BaseException:
            # The old client stays, and the periodic check tries again. Its permits stay, too.
            gevent.spawn(self._close_and_wait, new, MONGODB_EXTRA_A_WORKER + self._size)
            raise
        # No greenlet switch until `current` is set: close() must find each client exactly once.
        self._others.discard(new)
        self._others.add(old)
        self.current, self._size = new, self._wanted
        gevent.spawn(self._close_and_wait, old, needed)
        # Last: a log handler may switch greenlets, and close() may end this one meanwhile.
        log.info("%s pool: %s", self._name, _connections(self._size))

    def _close_and_wait(self, client: LimitedClient, needed: int) -> None:
        """Close *client* after its last user, then give back all but *needed* permits."""
        # Blocks that began with the old client end with it: nothing is interrupted.
        while client.users:
            gevent.sleep(EXCHANGE_TIMEOUT_S)
        close(client)
        while client.sockets.count():  # a monitor closes its socket only after its pending answer
            gevent.sleep(EXCHANGE_TIMEOUT_S)
        self._permits.keep(needed)
        self._others.discard(client)


def close(client: LimitedClient) -> None:
    """Close *client* and its monitors, without waiting for an unreachable server."""
    with pymongo.timeout(CLIENT_CLOSE_S):  # close() sends endSessions to the server
        client.close()


def _connections(number: int) -> str:
    return f"{number} connection{'' if number == 1 else 's'}"
