"""
A MongoClient of this worker, as large as the server allows, and a second one for readiness.

1. Neither opens a socket before it is first used, which is after the fork.
2. ``maxPoolSize`` cannot change later, so the client is made when the server told its limit.
3. Every wait in the driver is finite. ``pymongo.timeout`` is not used: it would replace
   ``serverSelectionTimeoutMS``, so that an outage took as long as a request may to be told.
4. Options in the URI win over ours.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pymongo
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import PyMongoError

from greenline.errors import ConfigError, PoolClosed
from greenline.mongo.errors import translated
from greenline.mongo.limits import read_max_connections

Document = dict[str, Any]

POOL: dict[str, Any] = {
    "connectTimeoutMS": 5_000,
    "serverSelectionTimeoutMS": 5_000,
    # Nothing waits for an answer longer than this, even outside a request.
    "socketTimeoutMS": 60_000,
    # pymongo's default of 2 connects at a time makes a cold burst queue.
    "maxConnecting": 8,
}
# All below the 2 s that a health check may take, so that the driver's own reason is told.
READINESS: dict[str, Any] = {
    "maxPoolSize": 1,
    "connectTimeoutMS": 1_500,
    "serverSelectionTimeoutMS": 1_500,
    "socketTimeoutMS": 1_500,
    "waitQueueTimeoutMS": 1_500,
}
GOODBYE_S = 1
DEFAULT_DATABASE = "greenline"


class Mongo:
    """
    Hand out the database, sized by *size_for* from the connections that the server allows.

    *size_for* takes that number, None where the server does not tell, and returns maxPoolSize.
    *timeout_s* bounds the wait for a connection of the pool.

    Raises:
        ConfigError: the URI is wrong.
    """

    def __init__(
        self, uri: str, *, size_for: Callable[[int | None], int], timeout_s: float
    ) -> None:
        self._uri = uri
        self._size_for = size_for
        self._timeout_s = timeout_s
        self._closed = False
        self._client: MongoClient[Document] | None = None
        try:
            self._readiness = self._make(READINESS)
            self._make({})  # says what is wrong in the URI; it opens nothing
        except (PyMongoError, ValueError, UserWarning) as error:
            raise ConfigError(str(error)) from error

    def __repr__(self) -> str:
        return f"<Mongo {'open' if self._client else 'not open yet'}>"

    @contextmanager
    def database(self) -> Iterator["Database[Document]"]:
        """
        Lend the database for the length of the block.

        Raises:
            PoolTimeout: no connection became free in time.
            PoolClosed: the client is closed.
            StoreDown: the server cannot be reached.
        """
        if self._closed:
            raise PoolClosed
        client = self._client or self._open()
        with translated():
            yield client.get_default_database(DEFAULT_DATABASE)

    def check(self) -> None:
        """
        Ask the server whether it answers, over a connection beside the pool.

        Raises:
            StoreDown: no answer, or none that makes sense.
        """
        if self._closed:
            raise PoolClosed
        with translated():
            self._readiness.admin.command("ping")
        if self._client is None:
            self._open()

    def close(self) -> None:
        """Close both clients, with their monitors; a server that is away is not waited for."""
        self._closed = True
        for client in filter(None, (self._readiness, self._client)):
            with pymongo.timeout(GOODBYE_S):  # it ends its sessions on the server
                client.close()

    def _open(self) -> "MongoClient[Document]":
        size = self._size_for(read_max_connections(self._readiness))
        if self._client is None:  # another greenlet may have been faster
            given = {name.lower() for name, _ in parse_qsl(urlsplit(self._uri).query)}
            ours = {"maxPoolSize": size, "waitQueueTimeoutMS": int(self._timeout_s * 1000)} | POOL
            ours = {name: value for name, value in ours.items() if name.lower() not in given}
            self._client = self._make(ours)
        return self._client

    def _make(self, options: dict[str, Any]) -> "MongoClient[Document]":
        """Return a client that is not connected; an option that pymongo would ignore is refused."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return MongoClient(
                self._uri, appname="greenline", connect=False, tz_aware=True, **options
            )
