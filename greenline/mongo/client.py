"""
Lend a worker's MongoDB database, from a client as large as the server allows.

A second client with one connection serves the readiness check. Options in the URI override
Greenline's.
"""

import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import inf
from time import monotonic
from types import TracebackType
from urllib.parse import urlsplit

import gevent
import pymongo
from gevent.lock import BoundedSemaphore
from pymongo import MongoClient, ReadPreference
from pymongo.database import Database
from pymongo.errors import InvalidURI, PyMongoError

from greenline.errors import ConfigError, DeadlineExceeded, PoolClosed, PoolTimeout
from greenline.hub import deadline
from greenline.mongo import options
from greenline.mongo.batches import Batches
from greenline.mongo.clients import Clients
from greenline.mongo.driver import LimitedClient
from greenline.mongo.errors import translate, translated
from greenline.mongo.limits import read_max_connections
from greenline.mongo.permits import Permits
from greenline.mongo.retry import Document
from greenline.slots import SlotTable
from greenline.telemetry.pool_statistics import PoolStatistics

PERMITS_RETRY_S = 0.05
DEFAULT_DATABASE = "greenline"

log = logging.getLogger(__name__)


class Mongo(Batches):
    """
    Lend the database of one MongoDB deployment.

    :param uri: MONGODB_URI, str.
    :param size_for: a callable that takes the number of connections that the server allows, None
        if unknown, and returns maxPoolSize; with a *slot_table* it also resizes that.
    :param timeout_s: seconds to wait for a connection of the pool, float.
    :param name: the pool's name in log lines, str, default ``mongodb``.
    :param documentdb: disable what Amazon DocumentDB refuses, bool, default False.
    :param slot_table: the host's :class:`SlotTable` of this server, default None; it limits the
        connections of all processes of the host together.
    :raises ConfigError: the URI is wrong.
    """

    def __init__(
        self,
        uri: str,
        *,
        size_for: Callable[[int | None], int],
        timeout_s: float,
        name: str = "mongodb",
        documentdb: bool = False,
        slot_table: SlotTable | None = None,
    ) -> None:
        self._uri = uri
        self.name = name
        # One for all clients, since an exchange of the client does not begin a new pool.
        self.statistics = PoolStatistics()
        self._size_for = size_for
        self._timeout_s = timeout_s
        self._documentdb = documentdb
        self._closed = False
        self._opening = BoundedSemaphore()
        # No client opens a socket before its first use: this may run before the fork.
        self._readiness = make_client(uri, options.READINESS)
        self._database = database_of(self._readiness)
        # Made without our options, to read the pool sizes that the URI sets.
        plain = make_client(uri, {}).options.pool_options
        _, is_theirs = options.split(uri, {"maxPoolSize": None})
        max_size = plain.max_pool_size
        # pymongo reads maxPoolSize=0 as unlimited (inf).
        self._fixed = (0 if max_size == inf else int(max_size)) if is_theirs else None
        self._min_size = max(plain.min_pool_size, 1)
        self._clients = Clients(Permits(slot_table), self._make, self._warm_up, name)

    def __repr__(self) -> str:
        return f"<Mongo {'open' if self._clients.current else 'not open yet'}>"

    @property
    def reads_primary(self) -> bool:
        """Whether reads go to the primary, as they do where the URI does not say otherwise."""
        return bool(self._readiness.read_preference == ReadPreference.PRIMARY)

    def stats(self) -> dict[str, int]:
        """Return the pool's size, its active and idle connections, and the waiting greenlets."""
        client = self._clients.current
        if client is None:
            return dict.fromkeys(("size", "active", "idle", "waiting"), 0)
        return client.stats()

    def get_stats(self) -> dict[str, int]:
        """
        Return :meth:`stats`, and the counts since the start, or since :meth:`pop_stats`.

        The counts are those of :class:`greenline.postgres.pool.ConnectionPool`. A request is the
        driver's, for one command, cursor or transaction; ``connections_lost`` includes those that
        were idle for longer than maxIdleTimeMS.
        """
        return {**self.stats(), **self.statistics.get()}

    def pop_stats(self) -> dict[str, int]:
        """Return the same as :meth:`get_stats`, and let the counts begin at 0 again."""
        return {**self.stats(), **self.statistics.pop()}

    def database(self, *, repeatable: bool = False) -> AbstractContextManager["Database[Document]"]:
        """
        Lend the database for the length of a ``with`` block, which is not repeated.

        :param repeatable: all operations of the block may be done twice, bool, default False. When
            True, a write whose answer was lost raises StoreDown instead of OutcomeUnknown.
        :returns: a context manager that gives a :class:`pymongo.database.Database`.
        :raises OutcomeUnknown: the answer to a write was lost: it may have been done.
        :raises PoolTimeout: no connection became free in time, or this worker may not have one yet.
        :raises PoolClosed: the client is closed.
        :raises StoreDown: the server cannot be reached.
        :raises DeadlineExceeded: the server did not answer before the request's deadline.
        """
        return _Checkout(self, repeatable)

    def check(self) -> None:
        """
        Ping the server over the readiness client, and open ``minPoolSize`` connections once.

        :raises StoreDown: no answer, or a malformed one.
        :raises PoolTimeout: this worker may not connect yet.
        :raises PoolClosed: the client is closed.
        """
        if self._closed:
            raise PoolClosed
        self._begin(options.READINESS_S)
        with translated(), self._within_deadline(options.READINESS_S):
            self._readiness.admin.command("ping")
        client = self._clients.current or self._open()
        # A worker is not ready before: the first burst would wait for its connects.
        if not client.is_warm:
            self._warm_up(client)

    def close(self) -> None:
        """Close all clients and their monitors, without waiting for an unreachable server."""
        self._closed = True
        self._clients.close(self._readiness)
        log.debug("%s pool: closed", self.name)

    def _within_deadline(self, at_most_s: float | None = None) -> AbstractContextManager[None]:
        """Limit the block's operations to the remaining time and to timeoutMS, if it is set."""
        left_s = deadline.remaining(at_most_s)
        if left_s is None:
            return nullcontext()
        if left_s <= 0:  # pymongo.timeout(0) means no limit
            raise DeadlineExceeded
        # pymongo.timeout replaces timeoutMS instead of taking the lesser of both.
        return pymongo.timeout(min(left_s, self._readiness.options.timeout or left_s))

    def _begin(self, timeout_s: float) -> None:
        """Wait for the smallest number of permits that a worker needs, readiness included."""
        if self._clients.current is not None:
            return
        until = monotonic() + (deadline.remaining(timeout_s) or 0)
        while not self._clients.begin(self._min_size):
            if monotonic() >= until:
                raise PoolTimeout("MongoDB: others hold all that the host may have, for now")
            gevent.sleep(PERMITS_RETRY_S)  # the slot table has no notification between processes
            if self._closed:
                raise PoolClosed

    def _open(self) -> LimitedClient:
        self._begin(self._timeout_s)
        # One at a time: the readiness client has one connection, for which the first requests of a
        # busy worker would wait until they time out.
        if not self._opening.acquire(timeout=deadline.remaining(self._timeout_s)):
            raise PoolTimeout
        try:
            return self._clients.current or self._open_alone()
        finally:
            self._opening.release()

    def _open_alone(self) -> LimitedClient:
        with self._within_deadline(options.READINESS_S):
            server_limit = read_max_connections(self._readiness)
        # Checked again, as the question to the server was a wait.
        if self._closed:  # a client made now would never be closed
            raise PoolClosed
        if self._clients.current is not None:  # made by another greenlet meanwhile
            return self._clients.current
        size = max(self._size_for(server_limit), self._min_size)
        # The URI's maxPoolSize is kept: such a worker neither begins small nor grows.
        if self._fixed is not None:
            return self._clients.open_fixed(self._min_size, self._fixed)
        return self._clients.open(self._min_size, size)

    def _make(self, size: int) -> LimitedClient:
        ours = options.pool_options(size, self._timeout_s, documentdb=self._documentdb)
        kept, theirs = options.split(self._uri, ours)
        if theirs and self._clients.current is None:
            log.info("mongodb: options of MONGODB_URI win over ours: %s", ", ".join(theirs))
        return make_client(self._uri, self._with_min_size(kept), self.statistics, self.name)

    def _with_min_size(self, kept: options.Options) -> options.Options:
        """Add minPoolSize, unless the URI sets it; at most maxPoolSize, the URI's or ours."""
        max_size = (
            kept.get("maxPoolSize")
            or make_client(self._uri, kept).options.pool_options.max_pool_size
        )
        minimum, _ = options.split(self._uri, {"minPoolSize": min(options.MIN_POOL_SIZE, max_size)})
        return kept | minimum

    def _warm_up(self, client: LimitedClient) -> None:
        """
        Open ``minPoolSize`` connections by as many concurrent pings.

        Up to maxConnecting the number is exact. Above it an early answer frees a connection for
        another ping, and the driver's own task opens the missing ones within a second.
        """

        def ask() -> PyMongoError | None:
            try:
                with pymongo.timeout(options.READINESS_S):
                    client.admin.command("ping")
            except PyMongoError as error:
                return error  # if raised, gevent would print a stack for each greenlet
            return None

        asking = [gevent.spawn(ask) for _ in range(client.options.pool_options.min_pool_size)]
        gevent.joinall(asking)
        with translated():
            for error in filter(None, (greenlet.value for greenlet in asking)):
                raise error
        client.is_warm = True


class _Checkout:
    """The block of :meth:`Mongo.database`; a class, as a generator would cost each request more."""

    __slots__ = ("_client", "_limits", "_mongo", "_repeatable")

    def __init__(self, mongo: Mongo, repeatable: bool) -> None:
        self._mongo = mongo
        self._repeatable = repeatable

    def __enter__(self) -> "Database[Document]":
        mongo = self._mongo
        if mongo._closed:
            raise PoolClosed
        # No greenlet switch between reading the client and counting its user: an exchange closes
        # a client as soon as it has no users.
        client = self._client = mongo._clients.current or mongo._open()
        self._limits = mongo._within_deadline(), deadline.spending("mongodb")
        client.users += 1
        for each in self._limits:
            each.__enter__()
        return client.kept_database(mongo._database)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        within, spending = self._limits
        spending.__exit__(kind, error, trace)
        within.__exit__(kind, error, trace)
        self._client.users -= 1
        if isinstance(error, PyMongoError):
            raise translate(error, repeatable=self._repeatable) from error


def server_of(uri: str) -> str:
    """
    Return the identity of the deployment in *uri*: its scheme, hosts and ports.

    Two spellings of one server, such as a host's name and its address, give two identities.
    """
    address = urlsplit(uri)
    hosts = address.netloc.rpartition("@")[2].lower().split(",")
    return f"{address.scheme}://{','.join(sorted(hosts))}"


def database_of(client: "MongoClient[Document]") -> str:
    """Return the name of the database in the client's URI, else the default."""
    return client.get_default_database(DEFAULT_DATABASE).name


def make_client(
    uri: str,
    ours: options.Options,
    statistics: PoolStatistics | None = None,
    pool_name: str | None = None,
) -> LimitedClient:
    """
    Return a client that is not connected.

    :param uri: a MongoDB URI, str.
    :param ours: pymongo's options, which override those in the URI, dict.
    :param statistics: as for :class:`LimitedClient`.
    :param pool_name: the same.
    :raises ConfigError: the URI is wrong, names a file that cannot be read, or has an option for
        which pymongo gives only a warning.
    """
    name, _ = options.split(uri, {"appName": "greenline"})
    try:
        with warnings.catch_warnings():
            # pymongo warns of an unknown or invalid option, and ignores it.
            warnings.simplefilter("error")
            return LimitedClient(
                uri, statistics, pool_name, connect=False, tz_aware=True, **name, **ours
            )
    except (PyMongoError, OSError, ValueError, UserWarning) as error:
        # pymongo quotes the part that it misread, which may belong to the password.
        address = urlsplit(uri)
        if isinstance(error, InvalidURI) or "@" in address.path + address.query:
            reason = "pymongo cannot read this URI; are special characters encoded?"
            raise ConfigError(reason) from None
        raise ConfigError(str(error)) from None
