"""
A MongoClient of this worker, as large as the server allows, and a second one for readiness.

1. Neither opens a socket before it is first used, which is after the fork.
2. ``maxPoolSize`` cannot change later, so the client is made when the server told its limit.
3. Every wait in the driver is finite. Inside a request ``pymongo.timeout`` ends every operation
   at the deadline, before the request is interrupted; see :mod:`greenline.mongo.driver`.
4. Options in the URI win over ours, and the log names them.
5. A worker is ready when ``minPoolSize`` connections are there.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from urllib.parse import urlsplit

import gevent
import pymongo
from pymongo.database import Database
from pymongo.errors import InvalidURI, PyMongoError

from greenline import deadline
from greenline.errors import ConfigError, DeadlineExceeded, PoolClosed
from greenline.mongo import options
from greenline.mongo.driver import LimitedClient
from greenline.mongo.errors import translated
from greenline.mongo.limits import read_max_connections
from greenline.mongo.retry import Document, Repeating

GOODBYE_S = 1
DEFAULT_DATABASE = "greenline"

log = logging.getLogger(__name__)


class Mongo(Repeating):
    """
    Hand out the database, sized by *size_for* from the connections that the server allows.

    *size_for* takes that number, None where the server does not tell, and returns maxPoolSize.
    *timeout_s* bounds the wait for a connection of the pool. With *documentdb* the driver does
    nothing that Amazon DocumentDB refuses.

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
    ) -> None:
        self._uri = uri
        self._size_for = size_for
        self._timeout_s = timeout_s
        self._documentdb = documentdb
        self._closed = False
        self._warm = False
        self._client: LimitedClient | None = None
        self._readiness = make_client(uri, options.READINESS)
        # It opens nothing, and says what is wrong in the URI.
        self._least = make_client(uri, {}).options.pool_options.min_pool_size

    def __repr__(self) -> str:
        return f"<Mongo {'open' if self._client else 'not open yet'}>"

    def stats(self) -> dict[str, int]:
        """Return size, of which active and idle; and waiting (greenlets)."""
        if self._client is None:
            return dict.fromkeys(("size", "active", "idle", "waiting"), 0)
        return self._client.stats()

    @contextmanager
    def database(self, *, repeatable: bool = False) -> Iterator["Database[Document]"]:
        """
        Lend the database for the length of the block; what is done in it is not repeated.

        *repeatable* says that all of it may be done twice: a write whose answer was lost is then
        told as an outage.

        Raises:
            OutcomeUnknown: the answer to a write was lost: it may have been done.
            PoolTimeout: no connection became free in time.
            PoolClosed: the client is closed.
            StoreDown: the server cannot be reached.
            DeadlineExceeded: the server did not answer before the request's deadline.
        """
        if self._closed:
            raise PoolClosed
        client = self._client or self._open()
        with (
            translated(repeatable=repeatable),
            self._within_deadline(),
            deadline.spending("mongodb"),
        ):
            yield client.get_default_database(DEFAULT_DATABASE)

    def check(self) -> None:
        """
        Ask the server whether it answers, over a connection beside the pool; warm the pool once.

        Raises:
            StoreDown: no answer, or none that makes sense.
        """
        if self._closed:
            raise PoolClosed
        with translated(), self._within_deadline(options.READINESS_S):
            self._readiness.admin.command("ping")
        client = self._client or self._open()
        if not self._warm:
            self._warm_up(client)

    def close(self) -> None:
        """Close both clients, with their monitors; a server that is away is not waited for."""
        self._closed = True
        for client in filter(None, (self._readiness, self._client)):
            with pymongo.timeout(GOODBYE_S):  # it ends its sessions on the server
                client.close()

    def _within_deadline(self, at_most_s: float | None = None) -> AbstractContextManager[None]:
        """Bound the block's operations to what remains, and to timeoutMS where the URI has it."""
        left_s = deadline.remaining(at_most_s)
        if left_s is None:
            return nullcontext()
        if left_s <= 0:  # which pymongo.timeout would take for no limit at all
            raise DeadlineExceeded
        return pymongo.timeout(min(left_s, self._readiness.options.timeout or left_s))

    def _open(self) -> LimitedClient:
        with self._within_deadline(options.READINESS_S):
            size = max(self._size_for(read_max_connections(self._readiness)), self._least)
        if self._closed:  # meanwhile: what is made now nobody would close
            raise PoolClosed
        if self._client is None:  # another greenlet may have been faster
            ours = options.pool_options(size, self._timeout_s, documentdb=self._documentdb)
            kept, theirs = options.split(self._uri, ours)
            if theirs:
                log.info("mongodb: options of MONGODB_URI win over ours: %s", ", ".join(theirs))
            self._client = make_client(self._uri, self._with_least(kept))
        return self._client

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
        self._warm = True


def make_client(uri: str, ours: options.Options) -> LimitedClient:
    """
    Return a client that is not connected, with *ours* as its options.

    Raises:
        ConfigError: the URI is wrong, or has an option that pymongo would only warn of.
    """
    more: dict[str, Any] = {"connect": False, "tz_aware": True, "appname": "greenline"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return LimitedClient(uri, **more, **ours)
    except (PyMongoError, ValueError, UserWarning) as error:
        # pymongo quotes what it misread, which may be a piece of the password.
        address = urlsplit(uri)
        if isinstance(error, InvalidURI) or "@" in address.path + address.query:
            reason = "pymongo cannot read this URI; are special characters encoded?"
            raise ConfigError(reason) from None
        raise ConfigError(str(error)) from None
