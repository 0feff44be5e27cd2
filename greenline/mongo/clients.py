"""
The client in use, and its exchange for a larger one.

1. ``maxPoolSize`` cannot change, so a pool grows by another client. A worker begins with the least,
   unless there is room for its whole share: the workers that it follows still hold theirs.
2. It tries again every ``EXCHANGE_CHECK_S``. The new client is warm before it is used, and what has
   begun stays with the old one, which is closed when the last of it has ended: nothing is
   interrupted.
3. There are permits for both until every socket of the old one is closed.
4. Where the server cannot be reached, the old client stays, and it is tried again.
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
# Between looks at whether the work on an old client has ended, and whether its sockets are closed.
EXCHANGE_TIMEOUT_S = 0.02
CLIENT_CLOSE_S = 1.0
MONITORS = MONGODB_EXCHANGE["its monitors"]

log = logging.getLogger(__name__)


class Clients:
    """
    The clients of one worker: the one in use, and those that are leaving.

    *make* returns a client of a size, not connected; *warm* connects it.
    """

    def __init__(
        self,
        permits: Permits,
        make: Callable[[int], LimitedClient],
        warm: Callable[[LimitedClient], None],
    ) -> None:
        self.current: LimitedClient | None = None
        self._permits = permits
        self._make = make
        self._warm = warm
        self._size = self._wanted = 0
        self._others: set[LimitedClient] = set()
        self._looking: gevent.Greenlet[..., None] | None = None

    def __repr__(self) -> str:
        return f"<Clients size={self._size} wanted={self._wanted} others={len(self._others)}>"

    def begin(self, least: int) -> bool:
        """Return whether there are permits for a pool of *least*, and look after them from now."""
        if self._looking is None and self._permits.are_counted:
            self._looking = keep_doing(
                self.look,
                lambda: uniform(EXCHANGE_CHECK_S / 2, EXCHANGE_CHECK_S),  # noqa: S311
                "looking after the connections to MongoDB",
            )
        self._permits.hear()
        return self._permits.take(MONGODB_EXTRA_A_WORKER + least)

    def open(self, least: int, wanted: int) -> LimitedClient:
        """Return the client in use, of size *wanted* if there is room, else of *least* for now."""
        has_room = self._permits.take(MONGODB_EXTRA_A_WORKER + wanted)
        size = wanted if has_room else least
        client = self._make(size)
        if self.current is None:  # another greenlet may have been faster
            self.current, self._size, self._wanted = client, size, wanted
            waiting = " until the old workers are gone" * (size < wanted)
            log.info("mongodb pool: %s%s", _connections(size), waiting)
        return self.current

    def open_fixed(self, least: int, size: int) -> LimitedClient:
        """Return the client in use, whose *size* is not ours to change, room or not; 0 is none."""
        self.current = self.current or self._make(size)
        self._size = self._wanted = size or least
        needed = MONGODB_EXTRA_A_WORKER + self._size
        has_room = self._permits.take(needed)
        if size == 0:
            log.warning("mongodb pool: maxPoolSize in MONGODB_URI is unlimited, the server is not")
        elif not has_room:
            log.warning(
                "mongodb pool: maxPoolSize in MONGODB_URI is not ours to change: this worker may "
                "connect %d times, %d times more than it should now",
                needed,
                needed - self._permits.held,
            )
        return self.current

    def look(self) -> None:
        """
        Free what killed workers left, and grow if there is room.

        Raises:
            GreenlineError: the server cannot be reached; the old client stays.
        """
        self._permits.settle()
        if self.current is None or self._others:
            return
        needed = MONGODB_EXTRA_A_WORKER + self._wanted
        if self._size < self._wanted:
            if self._permits.take(needed + self._size + MONITORS):
                self._exchange(self.current, needed)
        else:
            self._permits.take(needed)

    def close(self, *beside: LimitedClient) -> None:
        """Close all, and those *beside* them; a server that is away is not waited for."""
        if self._looking is not None:
            self._looking.kill()
        clients = [*beside, *self._others, *filter(None, [self.current])]
        for client in clients:
            close(client)
        if not self._permits.are_counted:
            return
        until = monotonic() + CLIENT_CLOSE_S
        while any(client.sockets.count() for client in clients):
            if monotonic() >= until:
                return  # they end with the process, and its permits are found
            gevent.sleep(EXCHANGE_TIMEOUT_S)
        self._permits.keep(0)

    def _exchange(self, old: LimitedClient, needed: int) -> None:
        new = self._make(self._wanted)
        self._others.add(new)
        try:
            self._warm(new)
        except BaseException:
            gevent.spawn(self._close_and_wait, new, MONGODB_EXTRA_A_WORKER + self._size)
            raise
        self._others.discard(new)
        self._others.add(old)
        self.current, self._size = new, self._wanted
        log.info("mongodb pool: %s", _connections(self._size))
        gevent.spawn(self._close_and_wait, old, needed)

    def _close_and_wait(self, client: LimitedClient, needed: int) -> None:
        """Close *client* when nobody uses it, and give back all permits but the *needed* ones."""
        while client.users:
            gevent.sleep(EXCHANGE_TIMEOUT_S)
        close(client)
        while client.sockets.count():  # a monitor that waits for an answer closes its own later
            gevent.sleep(EXCHANGE_TIMEOUT_S)
        self._permits.keep(needed)
        self._others.discard(client)


def close(client: LimitedClient) -> None:
    """Close *client* with its monitors; a server that is away is not waited for."""
    with pymongo.timeout(CLIENT_CLOSE_S):  # it ends its sessions on the server
        client.close()


def _connections(number: int) -> str:
    return f"{number} connection{'' if number == 1 else 's'}"
