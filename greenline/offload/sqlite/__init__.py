"""
Run sqlite3 in native threads, and wait for its locks in the hub.

sqlite's own wait for a lock would block the hub, and with it the greenlet that holds the lock. So
sqlite does not wait here: a statement that finds the database locked is tried again from the hub,
until the timeout of its connection.

Each connection has a thread for its calls. The thread also reads some rows ahead. Row factories
run in the caller's greenlet; other callbacks of the application (functions, adapters, converters)
run in the thread, with the caller's context variables. A hand-over costs more than a quick
statement, and would keep the write lock held meanwhile. So a statement that was quick in the thread
runs in the caller's greenlet the next time, if it can be ended at a limit and begun again in the
thread, or touches one row. A commit that waits for the disk always runs in the thread, and so does
that of a change that was slow, or after which a commit was slow.
"""

from sqlite3 import dbapi2 as sqlite3  # the package itself is not complete yet
from typing import Any

from greenline.hub.namespaces import namespaces
from greenline.offload.sqlite.connection import ThreadedConnection
from greenline.offload.sqlite.cursor import Cursor

# The originals: this package is imported before the names of sqlite3 are replaced.
_ORIGINALS: Any = (sqlite3.connect, sqlite3.Connection, sqlite3.Cursor)

FACTORY_POSITION = 5


def connect(*args: Any, **kwargs: Any) -> Any:
    """Open a connection to a database; parameters as in :func:`sqlite3.connect`."""
    factory = kwargs.get("factory", ThreadedConnection)
    if len(args) > FACTORY_POSITION:
        factory = args[FACTORY_POSITION]
    return factory(*args, **kwargs)


def patch() -> None:
    """Replace the names of sqlite3, also in modules that have imported them already."""
    replaced = {
        id(one): ours
        for one, ours in zip(_ORIGINALS, (connect, ThreadedConnection, Cursor), strict=True)
    }
    for module, namespace in namespaces():
        if module.startswith(__name__):
            continue  # this package keeps the originals
        for name, value in list(namespace.items()):
            if id(value) in replaced:
                namespace[name] = replaced[id(value)]
