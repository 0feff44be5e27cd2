"""
Run the server calls of mysqlclient (``MySQLdb``) in a native thread of each connection.

A query that waits for a lock occupies only the thread of its own connection, which the holder of
the lock does not need.
"""

import sys
from functools import partial
from types import ModuleType
from typing import Any

from greenline.offload.drivers import in_own_thread, own_thread
from greenline.offload.threads import OwnThread

CALLS = (
    "autocommit", "change_user", "close", "commit", "discard_result", "kill", "next_result", "ping",
    "query", "read_query_result", "rollback", "select_db", "send_query", "set_character_set",
    "set_server_option", "shutdown", "stat", "store_result",
)  # fmt: skip
# They run after a deadline, too: a connection that goes back must not be in a transaction.
CLEANUPS = ("close", "discard_result", "rollback")


class _Rows:
    """A result whose rows have not been read from the server."""

    def __init__(self, result: Any, own: OwnThread) -> None:
        self._result = result
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    def fetch_row(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next rows; parameters as in mysqlclient."""
        return self._own.call(partial(self._result.fetch_row, *args, **kwargs))

    def discard(self) -> Any:
        """Read the rows that remain."""
        return self._own.call(self._result.discard)


def _in_its_thread(base: Any, name: str) -> Any:
    return in_own_thread(getattr(base, name), is_cleanup=name in CLEANUPS)


def patch(module: ModuleType) -> None:
    """Replace the connection class of ``MySQLdb._mysql``."""
    base: Any = module.connection

    def use_result(self: Any) -> Any:
        result = own_thread(self).call(base.use_result, self)
        return result and _Rows(result, own_thread(self))

    methods = {name: _in_its_thread(base, name) for name in CALLS if hasattr(base, name)}
    methods |= {"__init__": _in_its_thread(base, "__init__"), "use_result": use_result}
    body = {**methods, "__module__": base.__module__}
    module.connection = module.connect = type("connection", (base,), body)  # type: ignore[attr-defined]
    # With preload_app the application may have connected already: its class has the base of before.
    if (loaded := sys.modules.get("MySQLdb.connections")) is not None:
        cls: Any = loaded.Connection
        cls.__init__ = _in_its_thread(cls, "__init__")
        for name in {*methods} - {*vars(cls)}:
            setattr(cls, name, methods[name])
