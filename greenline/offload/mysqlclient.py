"""
Run the server calls of mysqlclient (``MySQLdb``) in a native thread of each connection.

A query that waits for a lock occupies only the thread of its own connection, which the holder of
the lock does not need.
"""

from functools import partial
from types import ModuleType
from typing import Any

from greenline.offload.threads import OwnThread

CALLS = (
    "autocommit", "change_user", "close", "commit", "discard_result", "kill", "next_result", "ping",
    "query", "read_query_result", "rollback", "select_db", "send_query", "set_character_set",
    "set_server_option", "shutdown", "stat", "store_result",
)  # fmt: skip


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
    original = getattr(base, name)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._own.call(partial(original, self, *args, **kwargs))

    call.__name__ = name
    call.__doc__ = original.__doc__
    return call


def patch(module: ModuleType) -> None:
    """Replace the connection class of ``MySQLdb._mysql``, before ``MySQLdb`` imports it."""
    base: Any = module.connection

    def connect(self: Any, *args: Any, **kwargs: Any) -> None:
        self._own = OwnThread()
        self._own.call(partial(base.__init__, self, *args, **kwargs))

    def use_result(self: Any) -> Any:
        result = self._own.call(base.use_result, self)
        return result and _Rows(result, self._own)

    methods = {name: _in_its_thread(base, name) for name in CALLS if hasattr(base, name)}
    body = {"__init__": connect, "use_result": use_result, "__module__": base.__module__}
    module.connection = module.connect = type("connection", (base,), {**methods, **body})  # type: ignore[attr-defined]
