"""
A MongoClient of this worker, as large as the server allows, and a second one for readiness.

1. Neither opens a socket before it is first used, which is after the fork.
2. ``maxPoolSize`` cannot change later, so the client is made when the server told its limit, and
   made anew when a worker that began small may have its whole share: see
   :mod:`greenline.mongo.clients`. Nothing connects before there are permits for it.
3. Every wait in the driver is finite. Inside a request ``pymongo.timeout`` ends every operation
   at the deadline, before the request is interrupted; see :mod:`greenline.mongo.driver`.
4. Options in the URI win over ours, and the log names them; so does its ``maxPoolSize``, with which
   a worker neither begins small nor grows.
5. A worker is ready when ``minPoolSize`` connections are there.
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

PERMITS_RETRY_S = 0.05
DEFAULT_DATABASE = "greenline"

log = logging.getLogger(__name__)


class Mongo(Batches):
    """
    Hand out the database, sized by *size_for* from the connections that the server allows.

    *size_for* takes that number, None where the server does not tell, and returns maxPoolSize.
    *timeout_s* bounds the wait for a connection of the pool. With *documentdb* the driver does
    nothing that Amazon DocumentDB refuses. With a *slot_table* of the server no more is open than
    all of the host's processes together may have; *size_for* says in it how many that is.

    Raises:
        ConfigError: the URI is wrong.
    """

    def __init__(
        self,
        uri: str,
        *,
        size_for: Callable[[int | None], int],
        timeout_s: float,
        documentdb: bool = False,
        slot_table: SlotTable | None = None,
    ) -> None:
        self._uri = uri
        self._size_for = size_for
        self._timeout_s = timeout_s
        self._documentdb = documentdb
        self._closed = False
        self._warm: LimitedClient | None = None
        self._readiness = make_client(uri, options.READINESS)
        # It opens nothing, and says what is wrong in the URI.
        plain = make_client(uri, {}).options.pool_options
        _, is_theirs = options.split(uri, {"maxPoolSize": None})
        most = plain.max_pool_size
        self._fixed = (0 if most == inf else int(most)) if is_theirs else None
        self._least = max(plain.min_pool_size, 1)
        self._clients = Clients(Permits(slot_table), self._make, self._warm_up)

    def __repr__(self) -> str:
        return f"<Mongo {'open' if self._clients.current else 'not open yet'}>"

    def stats(self) -> dict[str, int]:
        """Return size, of which active and idle; and waiting (greenlets)."""
        client = self._clients.current
        if client is None:
            return dict.fromkeys(("size", "active", "idle", "waiting"), 0)
        return client.stats()

    def database(self, *, repeatable: bool = False) -> AbstractContextManager["Database[Document]"]:
        """
        Lend the database for the length of the block; what is done in it is not repeated.

        *repeatable* says that all of it may be done twice: a write whose answer was lost is then
        told as an outage.

        Raises:
            OutcomeUnknown: the answer to a write was lost: it may have been done.
            PoolTimeout: no connection became free in time, or this worker may not have one yet.
            PoolClosed: the client is closed.
            StoreDown: the server cannot be reached.
            DeadlineExceeded: the server did not answer before the request's deadline.
        """
        return _Checkout(self, repeatable)

    def check(self) -> None:
        """
        Ask the server whether it answers, over a connection beside the pool; warm the pool once.

        Raises:
            StoreDown: no answer, or none that makes sense.
            PoolTimeout: this worker may not connect yet.
        """
        if self._closed:
            raise PoolClosed
        self._begin(options.READINESS_S)
        with translated(), self._within_deadline(options.READINESS_S):
            self._readiness.admin.command("ping")
        client = self._clients.current or self._open()
        if self._warm is None:
            self._warm_up(client)

    def close(self) -> None:
        """Close all clients, with their monitors; a server that is away is not waited for."""
        self._closed = True
        self._clients.close(self._readiness)

    def _within_deadline(self, at_most_s: float | None = None) -> AbstractContextManager[None]:
        """Bound the block's operations to what remains, and to timeoutMS where the URI has it."""
        left_s = deadline.remaining(at_most_s)
        if left_s is None:
            return nullcontext()
        if left_s <= 0:  # which pymongo.timeout would take for no limit at all
            raise DeadlineExceeded
        return pymongo.timeout(min(left_s, self._readiness.options.timeout or left_s))

    def _begin(self, timeout_s: float) -> None:
        """Wait for the permits that a worker needs at the least, those of readiness among them."""
        if self._clients.current is not None:
            return
        until = monotonic() + (deadline.remaining(timeout_s) or 0)
        while not self._clients.begin(self._least):
            if monotonic() >= until:
                raise PoolTimeout("MongoDB: others hold all that the host may have, for now")
            gevent.sleep(PERMITS_RETRY_S)
            if self._closed:
                raise PoolClosed

    def _open(self) -> LimitedClient:
        self._begin(self._timeout_s)
        with self._within_deadline(options.READINESS_S):
            told = read_max_connections(self._readiness)
        if self._closed:  # meanwhile: what is made now nobody would close
            raise PoolClosed
        if self._clients.current is not None:  # another greenlet was faster
            return self._clients.current
        size = max(self._size_for(told), self._least)
        if self._fixed is not None:
            return self._clients.open_fixed(self._least, self._fixed)
        return self._clients.open(self._least, size)

    def _make(self, size: int) -> LimitedClient:
        ours = options.pool_options(size, self._timeout_s, documentdb=self._documentdb)
        kept, theirs = options.split(self._uri, ours)
        if theirs and self._clients.current is None:
            log.info("mongodb: options of MONGODB_URI win over ours: %s", ", ".join(theirs))
        return make_client(self._uri, self._with_least(kept))

    def _with_least(self, kept: options.Options) -> options.Options:
        """Add minPoolSize, if the URI has none: no more than maxPoolSize, whoever set that."""
        most = (
            kept.get("maxPoolSize")
            or make_client(self._uri, kept).options.pool_options.max_pool_size
        )
        least, _ = options.split(self._uri, {"minPoolSize": min(options.MIN_POOL_SIZE, most)})
        return kept | least

    def _warm_up(self, client: LimitedClient) -> None:
        """
        Connect ``minPoolSize`` times at once: one question each, all asked before any answer.

        Up to maxConnecting that is exact; beyond, the driver's own task adds within a second what
        early answers saved.
        """

        def ask() -> PyMongoError | None:
            try:
                with pymongo.timeout(options.READINESS_S):
                    client.admin.command("ping")
            except PyMongoError as error:
                return error  # gevent would print the stack of each
            return None

        asking = [gevent.spawn(ask) for _ in range(client.options.pool_options.min_pool_size)]
        gevent.joinall(asking)
        with translated():
            for error in filter(None, (greenlet.value for greenlet in asking)):
                raise error
        self._warm = client


class _Checkout:
    """The block of :meth:`Mongo.database`; a class, as every request pays for it."""

    __slots__ = ("_client", "_limits", "_mongo", "_repeatable")

    def __init__(self, mongo: Mongo, repeatable: bool) -> None:
        self._mongo = mongo
        self._repeatable = repeatable

    def __enter__(self) -> "Database[Document]":
        mongo = self._mongo
        if mongo._closed:
            raise PoolClosed
        client = self._client = mongo._clients.current or mongo._open()
        self._limits = mongo._within_deadline(), deadline.spending("mongodb")
        client.users += 1
        for each in self._limits:
            each.__enter__()
        return client.default_database(DEFAULT_DATABASE)

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
    Return what tells one deployment from another in *uri*: hosts and ports, as they are spelled.

    Two spellings of one server are two servers here: a host's name and its address, for instance.
    """
    address = urlsplit(uri)
    hosts = address.netloc.rpartition("@")[2].lower().split(",")
    return f"{address.scheme}://{','.join(sorted(hosts))}"


def make_client(uri: str, ours: options.Options) -> LimitedClient:
    """
    Return a client that is not connected, with *ours* as its options.

    Raises:
        ConfigError: the URI is wrong, names a file that cannot be read, or has an option that
            pymongo would only warn of.
    """
    name, _ = options.split(uri, {"appName": "greenline"})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return LimitedClient(uri, connect=False, tz_aware=True, **name, **ours)
    except (PyMongoError, OSError, ValueError, UserWarning) as error:
        # pymongo quotes what it misread, which may be a piece of the password.
        address = urlsplit(uri)
        if isinstance(error, InvalidURI) or "@" in address.path + address.query:
            reason = "pymongo cannot read this URI; are special characters encoded?"
            raise ConfigError(reason) from None
        raise ConfigError(str(error)) from None
