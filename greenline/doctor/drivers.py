"""Note what the drivers of databases do: the connections that they make, and each round trip."""

import sys
from collections.abc import Callable
from functools import partial, wraps
from types import FrameType, ModuleType
from typing import Any, NamedTuple, Protocol

from greenline import settings
from greenline.offload.imports import after_import

# Code below which a connection is made for a pool, or for the thread that keeps it.
POOLS = (
    "sqlalchemy.pool", "psycopg2.pool", "greenline.legacy.psycopg2_pool", "django.db.backends"
)  # fmt: skip


class Driver(NamedTuple):
    """
    How to look at a connection of a driver.

    :param is_open: returns whether it is open.
    :param is_in_transaction: returns whether an open one has a transaction.
    """

    is_open: Callable[[Any], bool]
    is_in_transaction: Callable[[Any], bool]


class Notes(Protocol):
    """What notes it."""

    def note_connection(self, conn: Any, driver: Driver, frame: FrameType | None) -> None:
        """Note that the code of *frame* has made *conn*."""

    def note_checkout(self, conn: Any, frame: FrameType | None) -> None:
        """Note that the code of *frame* has got *conn* from a pool."""

    def note_return(self, conn: Any) -> None:
        """Note that *conn* has been given back to its pool."""

    def note_client(self, frame: FrameType | None) -> None:
        """Note that the code of *frame* makes a client, which connects for itself."""

    def note_connection_of_django(self) -> None:
        """Note that Django connects, to close the connection at the end of the request."""

    def note_trip(self, conn: Any = None) -> None:
        """Note a round trip, of *conn* where it is one that was noted."""


def watch(notes: Notes) -> None:
    """Note what the drivers do that are imported, or will be."""
    for module, watched in (
        ("psycopg2", _psycopg2), ("psycopg", _psycopg), ("pymysql", _pymysql),
        ("pymongo", _pymongo), ("redis", _redis), ("psycopg2.pool", _psycopg2_pool),
        ("sqlalchemy", _sqlalchemy), ("django.db.backends.base.base", _django),
    ):  # fmt: skip
        after_import(module, partial(watched, notes))


def _psycopg2(notes: Notes, module: Any) -> None:
    from psycopg2 import extensions

    driver = Driver(
        lambda conn: not conn.closed, lambda conn: conn.status == extensions.STATUS_BEGIN
    )
    connect, wait = module._connect, extensions.get_wait_callback()

    def connecting(*args: Any, **kwargs: Any) -> Any:
        conn = connect(*args, **kwargs)
        notes.note_connection(conn, driver, sys._getframe(2))  # past psycopg2.connect()
        return conn

    def waiting(conn: Any) -> None:
        if conn.status != extensions.STATUS_SETUP:  # a connect is no statement
            notes.note_trip(conn)
        wait(conn)  # type: ignore[misc]

    module._connect = connecting
    if wait is not None:
        extensions.set_wait_callback(waiting)


def _psycopg(notes: Notes, module: Any) -> None:
    open_ones = (module.pq.TransactionStatus.INTRANS, module.pq.TransactionStatus.INERROR)
    driver = Driver(
        lambda conn: not conn.closed, lambda conn: conn.info.transaction_status in open_ones
    )
    # The application may have bound psycopg.connect(), and may have a class of its own.
    _before(module.Connection, "__init__", partial(_made, notes, driver))
    _before(module.Connection, "wait", lambda conn, *_, **__: notes.note_trip(conn))


def _pymysql(notes: Notes, module: Any) -> None:
    in_transaction = module.constants.SERVER_STATUS.SERVER_STATUS_IN_TRANS
    driver = Driver(lambda conn: conn.open, lambda conn: bool(conn.server_status & in_transaction))
    _before(module.connections.Connection, "__init__", partial(_made, notes, driver))
    _before(
        module.connections.Connection, "_execute_command", lambda conn, *_: notes.note_trip(conn)
    )


def _pymongo(notes: Notes, module: Any) -> None:
    from pymongo import monitoring

    if not settings.POOL.read():  # which makes one of all that are alike
        _before(module.MongoClient, "__init__", partial(_client, notes))

    class Listener(monitoring.CommandListener):
        def started(self, event: Any) -> None:
            notes.note_trip()

        def succeeded(self, event: Any) -> None: ...

        def failed(self, event: Any) -> None: ...

    monitoring.register(Listener())


def _redis(notes: Notes, module: ModuleType) -> None:
    from redis.connection import AbstractConnection, ConnectionPool

    _before(ConnectionPool, "__init__", partial(_client, notes))
    _before(AbstractConnection, "send_packed_command", lambda *_, **__: notes.note_trip())


def _psycopg2_pool(notes: Notes, module: Any) -> None:
    for pool in (module.SimpleConnectionPool, module.ThreadedConnectionPool):
        getconn = pool.getconn

        @wraps(getconn)
        def getting(*args: Any, getconn: Any = getconn, **kwargs: Any) -> Any:
            conn = getconn(*args, **kwargs)
            notes.note_checkout(conn, sys._getframe(1))
            return conn

        pool.getconn = getting
        _before(pool, "putconn", lambda _, conn, *args, **kwargs: notes.note_return(conn))


def _sqlalchemy(notes: Notes, module: ModuleType) -> None:
    from sqlalchemy import event
    from sqlalchemy.pool import Pool

    event.listen(
        Pool, "checkout", lambda _, record, *__: notes.note_checkout(record, sys._getframe())
    )
    event.listen(Pool, "checkin", lambda _, record: notes.note_return(record))


def _django(notes: Notes, module: Any) -> None:
    def connecting(wrapper: Any) -> None:
        vendor, is_ours = wrapper.vendor, wrapper.__module__.startswith("greenline.")
        is_pooled = is_ours or (settings.POOL.read() and vendor == "postgresql")
        is_closed = wrapper.settings_dict["CONN_MAX_AGE"] == 0  # at the request's end
        if is_closed and vendor != "sqlite" and not is_pooled:
            notes.note_connection_of_django()

    _before(module.BaseDatabaseWrapper, "connect", connecting)


def _made(notes: Notes, driver: Driver, conn: Any, *_: Any, **__: Any) -> None:
    notes.note_connection(conn, driver, sys._getframe(2))


def _client(notes: Notes, *_: Any, **__: Any) -> None:
    notes.note_client(sys._getframe(2))


def _before(owner: type, name: str, note: Callable[..., None]) -> None:
    """Call *note* with the arguments of each call of the method *name* of *owner*, before it."""
    method = getattr(owner, name)

    @wraps(method)
    def noting(*args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return method(*args, **kwargs)

    setattr(owner, name, noting)


def is_pooled(frame: FrameType | None) -> bool:
    """Return whether *frame* is below the code of a pool."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(POOLS):
            return True
        frame = frame.f_back
    return False
