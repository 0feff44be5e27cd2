"""
A MongoClient of this worker, as large as the server allows, and a second one for readiness.

1. Neither opens a socket before it is first used, which is after the fork.
2. ``maxPoolSize`` cannot change later, so the client is made when the server told its limit.
3. Every wait in the driver is finite, and ends with the request's deadline.
4. Options in the URI win over ours.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pymongo
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import PyMongoError

from greenline import deadline
from greenline.errors import ConfigError, PoolClosed
from greenline.mongo.errors import translated
from greenline.mongo.limits import read_max_connections

Document = dict[str, Any]

CONNECT_TIMEOUT_MS = 5_000
SERVER_SELECTION_TIMEOUT_MS = 5_000
# Nothing waits for an answer longer than this, even outside a request.
SOCKET_TIMEOUT_MS = 60_000
# pymongo's default of 2 connects at a time makes a cold burst queue.
MAX_CONNECTING = 8
DEFAULT_DATABASE = "greenline"


class Mongo:
    """
    Hand out the database, sized by *size_for* from the connections that the server allows.

    *size_for* takes that number, None where the server does not tell, and returns maxPoolSize.

    Raises:
        ConfigError: the URI is wrong.
    """

    def __init__(
        self, uri: str, *, size_for: Callable[[int | None], int], timeout_s: float | None = None
    ) -> None:
        self._uri = uri
        self._size_for = size_for
        self._timeout_s = timeout_s
        self._closed = False
        self._client: MongoClient[Document] | None = None
        try:
            self._readiness = self._make(1, ours_win=True)
        except (PyMongoError, ValueError) as error:
            raise ConfigError(str(error)) from error

    def __repr__(self) -> str:
        return f"<Mongo {'open' if self._client else 'not open yet'}>"

    @contextmanager
    def database(self) -> Iterator["Database[Document]"]:
        """
        Lend the database for the length of the block, which ends with the request's deadline.

        Raises:
            PoolTimeout: no connection became free in time.
            StoreDown: the server cannot be reached.
            DeadlineExceeded: it did not answer in time.
        """
        client = self._client or self._open()
        with translated(), pymongo.timeout(deadline.remaining()):
            yield client.get_default_database(DEFAULT_DATABASE)

    def check(self) -> None:
        """
        Ask the server whether it answers, over a connection beside the pool.

        Raises:
            StoreDown: no answer, or none that makes sense.
        """
        if self._closed:
            raise PoolClosed
        with translated(), pymongo.timeout(deadline.remaining()):
            self._readiness.admin.command("ping")
        if self._client is None:
            self._open()

    def close(self) -> None:
        """Close both clients, with their monitors."""
        self._closed = True
        self._readiness.close()
        if self._client is not None:
            self._client.close()

    def _open(self) -> "MongoClient[Document]":
        if self._closed:
            raise PoolClosed
        with pymongo.timeout(deadline.remaining()):
            size = self._size_for(read_max_connections(self._readiness))
        if self._client is None:  # another greenlet may have been faster
            self._client = self._make(size)
        return self._client

    def _make(self, max_pool_size: int, *, ours_win: bool = False) -> "MongoClient[Document]":
        options: dict[str, Any] = {
            "appname": "greenline",
            "maxPoolSize": max_pool_size,
            "maxConnecting": MAX_CONNECTING,
            "connectTimeoutMS": CONNECT_TIMEOUT_MS,
            "serverSelectionTimeoutMS": SERVER_SELECTION_TIMEOUT_MS,
            "socketTimeoutMS": SOCKET_TIMEOUT_MS,
            "waitQueueTimeoutMS": int((self._timeout_s or SOCKET_TIMEOUT_MS / 1000) * 1000),
        }
        if not ours_win:
            given = {name.lower() for name, _ in parse_qsl(urlsplit(self._uri).query)}
            options = {name: value for name, value in options.items() if name.lower() not in given}
        return MongoClient(self._uri, connect=False, tz_aware=True, **options)
