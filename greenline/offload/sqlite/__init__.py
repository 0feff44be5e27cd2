"""
sqlite3 for greenlets: its work is done in native threads, and its locks are waited for in the hub.

sqlite's own wait for a lock would block the hub, and with it the greenlet that is to release the
lock. Here sqlite does not wait: a statement that finds the database locked is tried again from the
hub until the timeout of its connection.

Each connection has a thread for its calls. Rows are read there, some ahead, and row factories run
in the caller's greenlet; the application's other callbacks (functions, adapters, converters) run in
the thread, with the caller's context variables. A hand-over costs more than a quick query, so a
query that took little time in the thread is run in the caller's greenlet the next time, with a
limit: beyond it, it is begun again in the thread.
"""

import sys
from sqlite3 import dbapi2 as sqlite3  # the package itself is not complete yet
from typing import Any

from greenline.offload.sqlite.connection import Connection
from greenline.offload.sqlite.cursor import Cursor

# The originals: this package is imported before sqlite3's names are replaced.
_ORIGINALS: Any = (sqlite3.connect, sqlite3.Connection, sqlite3.Cursor)

FACTORY_POSITION = 5


def connect(*args: Any, **kwargs: Any) -> Any:
    """Open a connection to a database; parameters as in :func:`sqlite3.connect`."""
    factory = kwargs.get("factory", Connection)
    if len(args) > FACTORY_POSITION:
        factory = args[FACTORY_POSITION]
    return factory(*args, **kwargs)


def patch() -> None:
    """Replace the names of sqlite3, wherever a module has taken them already."""
    replaced = {
        id(one): ours for one, ours in zip(_ORIGINALS, (connect, Connection, Cursor), strict=True)
    }
    for path, module in list(sys.modules.items()):
        if path.startswith(__name__):
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in replaced:
                setattr(module, name, replaced[id(value)])
