"""
Keep the connections of several clients of one process within its part of the host's connections.

Each client has pools and monitors of its own, of pymongo's sizes. The pools to one server share a
:class:`ConnectionLimit`: as many operations have a connection at once as this process may have
connections. An idle connection of one pool is closed if another pool needs a new one.
"""

from collections import deque
from contextlib import suppress
from random import uniform
from time import monotonic
from typing import Any, Protocol
from weakref import WeakSet

import gevent
import pymongo
from gevent.hub import Waiter
from pymongo.errors import InvalidOperation, WaitQueueTimeoutError
from pymongo.monitoring import ConnectionClosedReason

from greenline import settings
from greenline.budget.plan import MONGODB_EXCHANGE, MONGODB_EXTRA_A_WORKER
from greenline.errors import PoolTimeout, StoreDown, Unavailable
from greenline.hub import deadline, unavailable
from greenline.hub.cooperate import join_all, wake
from greenline.hub.lock_waits import LockWait
from greenline.hub.periodic import keep_doing
from greenline.lifecycle.resources import close_at_exit
from greenline.mongo.driver import Document, LimitedPool, Sockets
from greenline.mongo.host import HostShare
from greenline.mongo.limits import max_connections
from greenline.mongo.options import READINESS_S
from greenline.mongo.permits import Permits
from greenline.mongo.pymongo_compat import Connection, _csot
from greenline.telemetry import counters
from greenline.telemetry.pool_statistics import PoolStatistics

NAME = "pymongo pool"
# If the application sets no waitQueueTimeoutMS: pymongo would wait without a limit.
TIMEOUT_S = 30.0
MONITORS = MONGODB_EXCHANGE["its monitors"]
# What a process must have to connect at all.
MIN_PERMITS = MONGODB_EXTRA_A_WORKER + 1
LOOK_S, RETRY_S = 0.5, 0.05
# How long the connections that another process waits for may stay in use.
GIVE_S = 1.0
# Seconds for the server to end a connection, and for all of them at the exit of the process.
END_S, CLOSE_S = 0.1, 1.0
# Seconds after which the connections of a client that the application has dropped are closed.
UNUSED_S = 60.0

Address = tuple[str, int | None]


class CountedClient(Protocol):
    """A client whose connections a :class:`Budget` counts."""

    budget: "Budget"
    monitors: Sockets  # of all of its servers
    is_retired: bool
    is_gone: bool  # its connections have ended

    def unused_s(self) -> float:
        """Return for how many seconds the application has had no use for it."""

    def retire(self) -> None:
        """Have the application's next call make another one, before this one is closed."""

    def close(self) -> None:
        """Close it, and return when the monitors and the server have noticed it."""


class NoRoom(Exception):
    """No further connection may be made now."""


class ConnectionLimit:
    """
    Admit greenlets in the order of arrival, as many at once as there may be connections.

    ``sockets`` are the open connections to one server, and ``pools`` those that have them.

    :param size: the number of connections, int, or inf.
    """

    def __init__(self, size: float) -> None:
        self.sockets = Sockets()
        self.pools: WeakSet[CountedPool] = WeakSet()
        self.has_waited = False  # since that was last looked at
        self._size, self._used = size, 0
        self._line: deque[Waiter[None]] = deque()

    def __repr__(self) -> str:
        return f"<ConnectionLimit size={self._size} used={self._used} waiting={len(self._line)}>"

    @property
    def waiting(self) -> int:
        """The number of greenlets that wait."""
        return len(self._line)

    def resize(self, size: float) -> None:
        """Admit at most *size* greenlets from now on."""
        self._size = size
        self._admit()

    def acquire(self, timeout_s: float) -> bool:
        """Wait at most *timeout_s* seconds, and return whether the greenlet was admitted."""
        if not self._line and self._used < self._size:
            self._used += 1
            return True
        if timeout_s <= 0:
            return False
        self.has_waited = True
        waiter: Waiter[None] = Waiter()
        self._line.append(waiter)
        try:
            with LockWait(), deadline.spending("pool"), gevent.Timeout(timeout_s, False):  # type: ignore[arg-type]
                waiter.get()
        except BaseException:
            if waiter in self._line:
                self._line.remove(waiter)
            else:  # admitted in the same moment
                self.release()
            raise
        if waiter in self._line:
            self._line.remove(waiter)
            return False
        return True

    def release(self) -> None:
        """Admit the next greenlet."""
        self._used -= 1
        self._admit()

    def _admit(self) -> None:
        while self._line and self._used < self._size:
            self._used += 1
            wake(self._line.popleft())

    def has_room(self, number: int = 1) -> bool:
        """Return whether there is room for *number* further connections."""
        return self.sockets.count() + number <= self._size

    def is_within(self) -> bool:
        """Return whether the size is kept, after a decrease; close idle connections for it."""
        return self._used <= self._size and self.make_room(0)

    def make_room(self, number: int = 1) -> bool:
        """
        Close idle connections of all pools until there is room for *number* further ones.

        :returns: whether there is.
        """
        while not self.has_room(number):
            pool = max(self.pools, key=lambda pool: len(pool.conns), default=None)
            if pool is None or not pool.conns:
                return False
            # The right end has those that were returned first.
            pool.conns.pop().close_conn(ConnectionClosedReason.IDLE)
        return True


class CountedPool(LimitedPool):
    """
    A pool of one client to one server, whose connections are counted with those of other clients.

    :param owner: the client.
    :param address: the server's. The other arguments are pymongo's.
    """

    greenline_counts_time = True

    def __init__(self, owner: CountedClient, address: Address, *args: Any, **kwargs: Any) -> None:
        budget = owner.budget
        super().__init__(owner.monitors, budget.statistics, NAME, address, *args, **kwargs)
        self._budget = budget
        # A monitor has a pool of its own, for which the budget makes room before it begins.
        self._limit = None if self.is_sdam else budget.limit(address)
        # Greenlets that wait for this pool alone must not keep others from the common limit.
        self.own_limit = ConnectionLimit(self.max_pool_size)
        if self._limit is not None:
            self._sockets = self._limit.sockets
            self._limit.pools.add(self)

    def _get_conn(self, *args: Any, **kwargs: Any) -> Connection:
        limit = self._limit
        if limit is None:
            return super()._get_conn(*args, **kwargs)
        self._acquire(limit)
        try:
            connection = super()._get_conn(*args, **kwargs)
        except BaseException:
            self._release(limit)
            raise
        connection.greenline_is_counted = True  # type: ignore[attr-defined]
        return connection

    def checkin(self, conn: Connection) -> None:
        is_counted = vars(conn).pop("greenline_is_counted", False)
        try:
            super().checkin(conn)
        finally:
            if is_counted and self._limit is not None:
                self._release(self._limit)

    def remove_stale_sockets(self, reference_generation: int) -> None:
        with suppress(NoRoom):  # minPoolSize has to wait
            super().remove_stale_sockets(reference_generation)

    def connect(self, *args: Any, **kwargs: Any) -> Connection:
        if self._limit is None:
            return super().connect(*args, **kwargs)
        if args or kwargs:  # with a handler: for an operation, which has acquired it
            return self._connect(self._limit, *args, **kwargs)
        if not self._limit.has_room() or not self._limit.acquire(0):
            raise NoRoom
        try:
            return self._connect(self._limit)
        finally:
            self._limit.release()

    def _connect(self, limit: ConnectionLimit, *args: Any, **kwargs: Any) -> Connection:
        limit.make_room()
        connection = super().connect(*args, **kwargs)
        try:
            self._budget.learn(connection)
        except BaseException:
            connection.close_conn(ConnectionClosedReason.ERROR)
            raise
        return connection

    def _acquire(self, limit: ConnectionLimit) -> None:
        """
        Wait for both limits.

        :raises WaitQueueTimeoutError: not in time.
        """
        if not self.own_limit.acquire(0):
            self._wait(self.own_limit)
        try:
            if not limit.acquire(0):
                self._wait(limit)
        except BaseException:
            self.own_limit.release()
            raise

    def _release(self, limit: ConnectionLimit) -> None:
        self.own_limit.release()
        limit.release()

    def _wait(self, limit: ConnectionLimit) -> None:
        timeout_s = wait_s(self.opts.wait_queue_timeout)
        with self._statistics.queued():
            is_admitted = limit.acquire(timeout_s)
        if not is_admitted:
            self._statistics.requests_num += 1
            self._statistics.requests_errors += 1
            raise no_connection(PoolTimeout(), timeout_s)


def wait_s(given_s: float | None) -> float:
    """
    Return how many seconds an operation may wait for a connection now.

    :param given_s: waitQueueTimeoutMS in seconds, float; None: the application has set none.
    """
    timeouts_s = given_s or TIMEOUT_S, deadline.remaining(), _csot.remaining()
    return max(min(timeout_s for timeout_s in timeouts_s if timeout_s is not None), 0.0)


def no_connection(error: Unavailable, timeout_s: float) -> WaitQueueTimeoutError:
    """Return pymongo's error for *error*, and have the request answered with 503."""
    unavailable.note(error)
    failed = WaitQueueTimeoutError(
        "Timed out while checking out a connection from connection pool. "
        f"{error} timeout: {timeout_s:.1f}"
    )
    failed.__cause__ = error
    return failed


class Budget:
    """
    What this process may have of the connections to one deployment, for all of its clients.

    :param deployment: its name, from :func:`greenline.mongo.host.deployment_at`.
    :raises ConfigError: a variable is wrong.
    """

    def __init__(self, deployment: str) -> None:
        sizing = settings.sizing_of(
            workers=None,
            hosts=None,
            surge_hosts=None,
            mongodb_max_pool_size=None,
            mongodb_max_connections=None,
        )
        self.statistics = PoolStatistics()
        self._share = HostShare(deployment, sizing._replace(hosts=sizing.hosts or 1), NAME)
        self._permits = Permits(self._share.slot_table)
        self._limits: dict[Address, ConnectionLimit] = {}
        # Those with monitors, or for which there is room to begin.
        self._clients: list[CountedClient] = []
        self._looking: gevent.Greenlet[..., None] | None = None
        self._is_closed = False
        self._leaving = 0  # permits that are about to be given to another process
        counters.add(NAME, self.stats, self.statistics.reader())
        close_at_exit(self.close)

    def __repr__(self) -> str:
        return f"<Budget clients={len(self._clients)} {self._permits} {self._limits}>"

    def stats(self) -> dict[str, int]:
        """Return the connections of all pools, the active and idle ones, and the waiters."""
        limits = self._limits.values()
        pools = [pool for limit in limits for pool in limit.pools]
        active, idle = sum(pool.active_sockets for pool in pools), sum(len(p.conns) for p in pools)
        waiting = sum(limit.waiting for limit in [*limits, *(pool.own_limit for pool in pools)])
        return {"size": active + idle, "active": active, "idle": idle, "waiting": waiting}

    def limit(self, address: Address) -> ConnectionLimit:
        """Return the limit of one server."""
        found = self._limits.get(address)
        if found is None:
            found = self._limits[address] = ConnectionLimit(self._size)
        return found

    def admit(self, client: CountedClient, timeout_s: float) -> bool:
        """
        Wait at most *timeout_s* seconds for room for the monitors of *client*.

        :returns: whether there is room.
        :raises InvalidOperation: the process is about to end.
        """
        if self._is_closed:
            raise InvalidOperation("Cannot use MongoClient after close")
        if self._looking is None:
            self._looking = keep_doing(
                self._look,
                # Random, so that the workers of a host do not compete at the same moments.
                lambda: uniform(LOOK_S / 2, LOOK_S),  # noqa: S311
                "looking after the connections to MongoDB",
            )
        if client in self._clients:  # mongodb+srv: its hosts could not be found then
            return True
        until = monotonic() + timeout_s
        while not self._has_permits():
            if monotonic() >= until:
                return False
            self._permits.request()
            gevent.sleep(RETRY_S)  # the slot table has no notification between processes
        self._clients.append(client)
        self._resize()
        # The pools may have connections in the place of the monitors.
        if not self._is_within(until):
            self._clients.remove(client)
            self._resize()
            return False
        return True

    def learn(self, connection: Connection) -> None:
        """
        Ask the server over its first connection how many it allows.

        :raises PyMongoError: it does not answer.
        """
        if self._share.plan is not None:
            return

        def ask() -> Document:
            with pymongo.timeout(READINESS_S):
                # The application's listeners get no events of a command that is not its own.
                return connection.command("admin", {"serverStatus": 1}, publish_events=False)

        try:
            self._share.size(max_connections(ask))
        except StoreDown as error:
            raise no_connection(error, 0.0) from error
        self._grow()

    def close(self) -> None:
        """Close all clients and give the slots back."""
        self._is_closed = True
        if self._looking is not None:
            self._looking.kill()
        join_all([gevent.spawn(client.close) for client in self._clients], CLOSE_S)
        self._forget_closed()
        if not self._clients:  # otherwise another worker frees the slots, after this process
            self._permits.keep(0)
        counters.remove(NAME, self.stats)
        self._share.close()

    @property
    def _max_permits(self) -> int:
        plan = self._share.plan
        return MIN_PERMITS if plan is None else MONGODB_EXTRA_A_WORKER + plan.worker

    @property
    def _size(self) -> int:
        """The connections that all pools may have together to each server."""
        # The even share of a worker has room for two clients. Each further one takes the place of
        # two connections.
        room = self._permits.held - self._leaving - MONITORS * len(self._clients)
        return max(min(self._max_permits - MONGODB_EXTRA_A_WORKER, room), 1)

    def _has_permits(self) -> bool:
        """Return whether there are permits for a further client and a connection."""
        self._forget_closed()
        needed = _needed(len(self._clients) + 1)
        self._permits.use_published()
        if needed <= self._max_permits and self._permits.take(needed):
            return True
        if not any(client.is_retired for client in self._clients):
            self._retire(1, 0.0)
        return False

    def _look(self) -> None:
        self._permits.settle()
        self._forget_closed()
        self._retire(len(self._clients), UNUSED_S)
        self._give()
        self._grow()
        self._ask()

    def _give(self) -> None:
        """Give permits to another process that waits for them and holds fewer."""
        spare = self._spare()
        if not spare or not self._permits.should_give():
            return
        # The first ones are of no use unless there are enough to connect. Of further ones a single
        # one is given at a time, so that two processes which both wait come to rest.
        is_first = self._permits.fewest_waiting() < MIN_PERMITS
        self._leaving = min(MIN_PERMITS if is_first else 1, spare)
        self._resize()
        # Their connections are closed first, and those in use are waited for. Meanwhile this
        # process may have got another client.
        if self._is_within(monotonic() + GIVE_S):
            self._permits.keep(self._permits.held - min(self._leaving, self._spare()))
        self._leaving = 0
        self._resize()

    def _spare(self) -> int:
        """Return how many permits this process can do without."""
        return max(self._permits.held - _needed(len(self._clients)), 0)

    def _grow(self) -> None:
        """Take the permits that are free, up to this process's share."""
        while self._permits.held < self._max_permits and self._permits.take(self._permits.held + 1):
            pass
        self._resize()

    def _ask(self) -> None:
        """Ask other processes for permits, if operations have waited for a connection."""
        has_waited = any(limit.has_waited for limit in self._limits.values())
        # As long as they may take until they look.
        until = monotonic() + LOOK_S
        while has_waited and self._permits.held < self._max_permits and monotonic() < until:
            self._permits.request()
            gevent.sleep(RETRY_S)
            self._grow()
        for limit in self._limits.values():
            limit.has_waited = limit.waiting > 0

    def _resize(self) -> None:
        for limit in self._limits.values():
            limit.resize(self._size)

    def _is_within(self, until: float) -> bool:
        """Wait until all limits are kept, and return whether they are before *until*."""
        while not all(limit.is_within() for limit in self._limits.values()):
            if monotonic() >= until:
                return False
            gevent.sleep(RETRY_S)
        return True

    def _retire(self, number: int, unused_s: float) -> None:
        """Close at most *number* clients that the application has no use for, in the background."""
        unused = [client for client in self._clients if client.unused_s() > unused_s]
        for client in sorted(unused, key=lambda client: -client.unused_s())[:number]:
            client.retire()  # without a switch of greenlets since it was found to be unused
            gevent.spawn(client.close)

    def _forget_closed(self) -> None:
        self._clients = [client for client in self._clients if not client.is_gone]


def _needed(clients: int) -> int:
    """Return the permits for the monitors of that many clients and a connection."""
    return max(MONITORS * clients + 1, MIN_PERMITS)
