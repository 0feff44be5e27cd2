"""
Open MongoDB in one call: a client whose connections fit into what the server allows the host.

All that one process opens on one server as one user share one client, its pool and its slots.
"""

import os
from copy import copy
from urllib.parse import urlsplit, urlunsplit

from gevent.lock import BoundedSemaphore

from greenline import settings
from greenline.budget.plan import Plan
from greenline.cache.feed import Feed
from greenline.errors import ConfigError, PoolClosed
from greenline.lifecycle.health import Check
from greenline.lifecycle.resources import Resources, close_at_exit
from greenline.mongo.changes import Changes
from greenline.mongo.client import Mongo, database_of, make_client, server_of
from greenline.mongo.host import HostShare, deployment_of
from greenline.settings import Sizing
from greenline.telemetry import counters

WAIT_QUEUE_TIMEOUT_S = 30.0


class OpenMongo(Mongo):
    """
    MongoDB as :func:`open` returns it.

    :param uri: the server's address.
    :param name: the pool's name in the counters and in log lines.
    :param sizing: what the budget is computed from.
    :param timeout_s: seconds to wait for a connection.
    :param documentdb: whether the server is an Amazon DocumentDB.
    :param starts_later: whether :meth:`start` is called later.
    """

    def __init__(
        self,
        uri: str,
        name: str,
        sizing: Sizing,
        *,
        timeout_s: float,
        documentdb: bool,
        starts_later: bool,
    ) -> None:
        self._arguments = sizing, documentdb
        self._starts_later = starts_later
        self._is_started = False
        self._readers: list[Changes] = []
        self._first, self._users = self, [self]
        self._share = HostShare(deployment_of(uri), sizing, name)
        self.slot_table = self._share.slot_table
        super().__init__(
            uri,
            size_for=self._share.size,
            timeout_s=timeout_s,
            name=name,
            documentdb=documentdb,
            slot_table=self.slot_table,
        )
        counters.add(name, self.stats, self.statistics.reader())

    @property
    def plan(self) -> Plan | None:
        """The connections of the host and its workers; None before the server was asked."""
        return self._share.plan

    def again(self, uri: str, sizing: Sizing, documentdb: bool, starts_later: bool) -> "OpenMongo":
        """
        Return another one with the same client, which is closed by itself.

        :param uri: an address of the same server, perhaps with another database.
        :param starts_later: whether :meth:`start` of the other one is called later.
        :raises ConfigError: *sizing* or *documentdb* is another one than in the first call.
        """
        if (sizing, documentdb) != self._arguments:
            raise ConfigError(
                f"{server_of(uri)} is open already with another number of workers, hosts, "
                "connections or pool size, or with another 'documentdb'"
            )
        other = copy(self)
        other._closed = other._is_started = False
        other._starts_later = starts_later
        other._readers = []
        other._database = database_of(make_client(uri, {}))
        self._users.append(other)
        return other

    def feed(self, max_stale_s: float = 2.0) -> Feed:
        """
        Return the changes of the database, for ``greenline.cache.Cache(feed=)``.

        One process of the host reads the database's change stream, over connections of its pool, as
        long as this is open; where it has *resources*, after their start. A changed document
        invalidates the key "COLLECTION ID" and the tag "COLLECTION", a dropped collection the tag
        "COLLECTION items" as well. A server without change streams announces nothing.

        :param max_stale_s: seconds for which a value is used while the stream confirms nothing,
            float; they begin with its load. Default 2.
        :raises ConfigError: the file that the processes share cannot be used.
        :raises PoolClosed: it is closed.
        """
        if self._closed:
            raise PoolClosed
        feed = Feed(f"{deployment_of(self._uri)} {self._database}", max_stale_s)
        self._readers.append(Changes(self, feed))
        if self._is_started or not self._starts_later:
            self.start()
        return feed

    def start(self) -> None:
        """Read the changes for the feeds from now on."""
        self._is_started = True
        for reader in self._readers:
            reader.start()

    def close(self) -> None:
        """Close it; the last one closes the client with its monitors, and gives the slots back."""
        if self not in self._users:
            return
        for reader in self._readers:
            reader.close()
        self._users.remove(self)
        if self._users:
            self._closed = True
            return
        key = _key(self._uri)
        if _opened.get(key) is self._first:
            del _opened[key]
        try:
            super().close()
        finally:
            counters.remove(self.name, self._first.stats)
            self._share.close()


# The first one by server and user: two clients could not divide a pool, as the size of pymongo's is
# fixed.
_opened: dict[str, OpenMongo] = {}
_opening = BoundedSemaphore()  # the slot table's file may let a greenlet wait


def _forget() -> None:
    global _opening
    _opened.clear()
    _opening = BoundedSemaphore()  # the greenlet that holds it is the parent's


# A child opens its own: the slot table's file is closed in it.
os.register_at_fork(after_in_child=_forget)


def _key(uri: str) -> str:
    """Return the URI without its database; with it where it authenticates the user."""
    address = urlsplit(uri)
    if "@" in address.netloc and "authsource=" not in address.query.lower():
        return uri
    return urlunsplit(address._replace(path="/"))


def open(  # noqa: A001 - mongo.open() is the name that users type
    uri: str | None = None,
    *,
    name: str = "mongodb",
    workers: int | None = None,
    hosts: int | None = None,
    surge_hosts: int | None = None,
    max_size: int | None = None,
    max_connections: int | None = None,
    timeout_s: float = WAIT_QUEUE_TIMEOUT_S,
    documentdb: bool = False,
    resources: Resources | None = None,
    check: Check | None = None,
) -> OpenMongo:
    """
    Open a client whose connections fit into what the server allows the workers of all hosts.

    Nothing connects before the first use. A second call with the same server and user, and any
    database, shares the client of the first, with its pool, name and *timeout_s*; each is closed by
    itself. An argument that is None is read from the environment of the worker.

    :param uri: ``mongodb://...``. Default ``MONGODB_URI``.
    :param name: the pool's name in the counters and in log lines. Default ``mongodb``.
    :param workers: workers of this host, int. Default ``WEB_CONCURRENCY``, which the worker sets.
    :param hosts: hosts that share the server, int. Default ``GREENLINE_HOSTS``, 1.
    :param surge_hosts: hosts more while a deploy rolls, int. Default ``GREENLINE_SURGE_HOSTS``, 1.
    :param max_size: maxPoolSize, int. Default ``MONGODB_MAX_POOL_SIZE``; without one, this worker's
        part of what the server allows.
    :param max_connections: what the server allows, where it does not answer that, int. Default
        ``MONGODB_MAX_CONNECTIONS``.
    :param timeout_s: seconds to wait for a connection, float. Default 30.
    :param documentdb: the server is an Amazon DocumentDB. Default False.
    :param resources: where start, check and close are registered; None closes at the exit of the
        process. Default None.
    :param check: what readiness asks. Default: whether the server answers.
    :raises ConfigError: the URI, an argument or a variable is wrong, or the server is open
        already with another number of workers, hosts, connections or pool size.
    """
    if uri is None:
        _, uri = settings.databases()
        if not uri:
            variable = settings.MONGODB_URI.name
            raise ConfigError(f"{variable}: {settings.not_set(variable)}")
    sizing = settings.sizing_of(
        workers=workers,
        hosts=hosts,
        surge_hosts=surge_hosts,
        mongodb_max_pool_size=max_size,
        mongodb_max_connections=max_connections,
    )
    if hosts is not None and sizing.hosts is None:
        raise ConfigError("hosts: 'auto' is for postgres.open() alone: MongoDB's are not counted")
    sizing = sizing._replace(hosts=sizing.hosts or 1)  # the same for None and 1
    key = _key(uri)
    with _opening:
        first = _opened.get(key)
        if first is None:
            opened = OpenMongo(
                uri,
                name,
                sizing,
                timeout_s=timeout_s,
                documentdb=documentdb,
                starts_later=resources is not None,
            )
            _opened[key] = opened
        else:
            opened = first.again(uri, sizing, documentdb, resources is not None)
    if resources is None:
        close_at_exit(opened.close)
    else:
        resources.add(name, start=opened.start, close=opened.close, check=check or opened.check)
    return opened
