"""
Run mysql-connector-python's C extension in a native thread of each connection.

Some rows are read ahead: its cursors ask for one at a time, and a hand-over for each would cost
more.
"""

from collections import deque
from time import monotonic
from types import ModuleType
from typing import Any

from greenline.offload.drivers import in_own_thread, own_thread

AHEAD_ROWS, AHEAD_S = 100, 0.001
METHODS = (
    "_open_connection", "cmd_change_user", "cmd_init_db", "cmd_query", "cmd_refresh",
    "cmd_reset_connection", "cmd_shutdown", "cmd_statistics", "cmd_stmt_close", "cmd_stmt_execute",
    "cmd_stmt_prepare", "cmd_stmt_reset", "close", "commit", "consume_results", "free_result",
    "info_query", "is_connected", "next_result", "ping", "reset_session", "rollback",
    "set_character_set_name",
)  # fmt: skip
SETTERS = ("autocommit", "database")
# They run after a deadline, too: a connection that goes back must not be in a transaction.
CLEANUPS = {
    "autocommit", "close", "cmd_change_user", "cmd_reset_connection", "cmd_stmt_close",
    "cmd_stmt_reset", "consume_results", "free_result", "reset_session", "rollback",
}  # fmt: skip
# After these no row of the result is left.
FORGET_ROWS = {
    "_open_connection", "cmd_change_user", "cmd_query", "cmd_reset_connection", "cmd_stmt_execute",
    "close", "consume_results", "free_result", "next_result", "reset_session", "rollback",
}  # fmt: skip


def patch(module: ModuleType) -> None:
    """Replace methods of ``mysql.connector.connection_cext``'s class."""
    kind: Any = module.CMySQLConnection
    read, unread = kind.get_rows, kind.unread_result
    read_in_thread, read_ahead = (
        in_own_thread(each, is_cleanup=False) for each in (read, _read_ahead)
    )

    def get_rows(self: Any, count: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Return the next rows, at most *count*, and what the server says at their end."""
        rows: list[Any] = []
        ahead = _ahead(self)
        while ahead and len(rows) != count:
            row, end = ahead.popleft()
            if row is None:
                return rows, end
            rows.append(row)
        if rows and len(rows) == count:
            return rows, None
        left = None if count is None else count - len(rows)
        more, end = read_in_thread(self, left, *args, **kwargs)
        return rows + more, end

    def get_row(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the next row, None after the last one, and what the server says then."""
        if args or kwargs.get("prep_stmt") is not None:
            rows, end = read_in_thread(self, 1, *args, **kwargs)
            return (rows[0] if rows else None), end
        ahead = _ahead(self)
        if not ahead:
            read_ahead(self, ahead, read, kwargs)
        return ahead.popleft()

    def unread_result(self: Any) -> bool:
        """Whether rows are left."""
        return bool(_ahead(self)) or unread.fget(self)

    for name in METHODS:
        if name in vars(kind):
            made = in_own_thread(getattr(kind, name), is_cleanup=name in CLEANUPS)
            setattr(kind, name, _forgetting(made) if name in FORGET_ROWS else made)
    for name in SETTERS:
        attribute = getattr(kind, name)
        write = in_own_thread(attribute.fset, is_cleanup=name in CLEANUPS)
        setattr(kind, name, attribute.setter(write))
    kind.get_rows, kind.get_row, kind.unread_result = get_rows, get_row, property(unread_result)


def _ahead(connection: Any) -> deque[Any]:
    """Return the rows that were read ahead, each with what the server says at their end."""
    found: deque[Any] = vars(connection).setdefault("_greenline_rows", deque())
    return found


def _read_ahead(connection: Any, ahead: deque[Any], read: Any, kwargs: Any) -> None:
    """Read the next row and some more, in the thread."""
    until_s = monotonic() + AHEAD_S
    while True:
        rows, end = read(connection, 1, **kwargs)
        ahead.append((rows[0] if rows else None, end))
        if not rows or len(ahead) >= AHEAD_ROWS or monotonic() >= until_s:
            return


def _forgetting(method: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Unless the driver calls it at the end of the result.
        if not own_thread(self).is_current():
            _ahead(self).clear()
        return method(self, *args, **kwargs)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call
