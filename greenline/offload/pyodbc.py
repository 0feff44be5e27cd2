"""
Run the calls of pyodbc in a native thread of each connection.

Its classes cannot have subclasses, so the ones made here hold a connection or a cursor of pyodbc
and have the same attributes. A query that waits for a lock occupies only the thread of its own
connection, which the holder of the lock does not need.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from time import monotonic
from types import MethodDescriptorType, ModuleType
from typing import Any

from greenline.offload import threads
from greenline.offload.threads import OwnThread

AHEAD_ROWS, AHEAD_S = 100, 0.001  # at first; of a long result more and more
MAX_AHEAD_ROWS, MAX_AHEAD_S = 3_000, 0.01
CHUNK_ROWS = 1000
# They run after a deadline, too: a connection that goes back must not be in a transaction.
CLEANUPS = {"close", "rollback", "__exit__"}
# After these the rows that were read ahead are still the next ones.
KEEP_ROWS = {"commit", "rollback", "__exit__", "setinputsizes", "setoutputsize"}


class _InThread:
    """
    A connection or a cursor of pyodbc.

    :param inner: pyodbc's object.
    :param own: the thread of the connection.
    """

    __slots__ = ("__weakref__", "_inner", "_own")

    def __init__(self, inner: Any, own: OwnThread) -> None:
        self._inner = inner
        self._own = own

    def __del__(self) -> None:
        # A destructor of pyodbc may ask the server, and must not run beside another call.
        if hasattr(self, "_inner") and (self._asks_server() or not self._own.is_idle):
            held = [self._inner]
            del self._inner
            self._own.drop(held)

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError(f"cannot copy or pickle a pyodbc.{type(self).__name__}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in a thread: {self._inner!r}>"

    def __enter__(self) -> Any:
        return self

    def _asks_server(self) -> bool:
        """Return whether the destructor of pyodbc's object may ask the server."""
        raise NotImplementedError

    def _run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of pyodbc's object in the thread."""
        call = partial(getattr(self._inner, name), *args, **kwargs)
        return self._own.call(call, is_cleanup=name in CLEANUPS)


class _Connection(_InThread):
    __slots__ = ()
    cursor_class: Any

    def cursor(self) -> Any:
        """Return a cursor."""
        # It asks nothing of the server.
        inner = self._inner.cursor() if self._own.is_idle else self._run("cursor")
        return self.cursor_class(inner, self)

    def execute(self, *args: Any) -> Any:
        """Execute a statement with a new cursor, and return that."""
        return self.cursor().execute(*args)

    def _asks_server(self) -> bool:
        return not self._inner.closed


class _Cursor(_InThread):
    """A cursor, which reads some rows ahead: a hand-over for each row would cost more."""

    __slots__ = (
        "_ahead", "_ahead_rows", "_ahead_s", "_connection", "_error", "_has_executed", "_is_closed",
        "_is_finished",
    )  # fmt: skip

    def __init__(self, inner: Any, connection: _Connection) -> None:
        super().__init__(inner, connection._own)
        self._connection = connection
        self._has_executed = self._is_closed = False
        self._forget_rows()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if (row := self.fetchone()) is None:
            raise StopIteration
        return row

    @property
    def connection(self) -> Any:
        """The connection that has made the cursor."""
        return self._connection

    def execute(self, *args: Any) -> Any:
        """Execute a statement, and return this cursor; parameters as in pyodbc."""
        self._call(self._execute, *args)
        return self

    def executemany(self, sql: str, params: Iterable[Any], /) -> None:
        """Execute a statement for each set of parameters, as in pyodbc."""
        if not hasattr(params, "__next__"):
            self._run("executemany", sql, params)
            return
        # An iterator is code of the application, so it runs in the caller's greenlet.
        rows = iter(params)
        self._run("executemany", sql, iter(list(islice(rows, CHUNK_ROWS))))
        while chunk := list(islice(rows, CHUNK_ROWS)):
            self._run("executemany", sql, chunk)

    def fetchone(self) -> Any:
        """Return the next row, None after the last one."""
        self._check()
        if not self._ahead:
            self._raise()
            if not self._is_finished:
                self._call(self._read_ahead)
            if not self._ahead:
                self._raise()
                return None
        return self._ahead.popleft()

    def fetchval(self) -> Any:
        """Return the first column of the next row, None after the last one."""
        row = self.fetchone()
        if isinstance(row, dict):
            return next(iter(row.values()))
        return None if row is None else row[0]

    def fetchmany(self, size: int | None = None, /) -> list[Any]:
        """Return the next rows, at most *size* of them, ``arraysize`` by default."""
        self._check()
        wanted = self._inner.arraysize if size is None else size
        if wanted < 0:
            return self.fetchall()
        if len(self._ahead) < wanted and not self._is_finished and self._error is None:
            self._call(self._read, self._inner.fetchmany, wanted - len(self._ahead))
        elif not self._ahead:
            self._raise()
        return [self._ahead.popleft() for _ in range(min(wanted, len(self._ahead)))]

    def fetchall(self) -> list[Any]:
        """Return all rows that remain."""
        self._check()
        if self._error is not None:
            self._ahead.clear()
            self._raise()
        if not self._is_finished:
            self._call(self._read, self._inner.fetchall)
        rows = list(self._ahead)
        self._ahead.clear()
        return rows

    def skip(self, count: int, /) -> None:
        """Leave out some rows."""
        self._check()
        while count > 0 and self._ahead:
            self._ahead.popleft()
            count -= 1
        self._raise()
        self._call(self._inner.skip, count)

    def cancel(self) -> None:
        """Cancel the statement that another greenlet executes with this cursor."""
        # Not in the thread of the connection, in which that statement runs.
        threads.run(self._inner.cancel)

    def close(self) -> None:
        """Close the cursor."""
        if self._asks_server() or not self._own.is_idle:
            self._run("close")
        else:
            self._inner.close()
        self._is_closed = True

    def _asks_server(self) -> bool:
        # Psqlodbc sends a DEALLOCATE for what it has prepared, SQL Server the other results.
        return self._has_executed and not self._is_closed

    def _check(self) -> None:
        """Raise pyodbc's error where rows that were read ahead must not be returned any more."""
        if self._is_closed or self._connection._inner.closed:
            self._inner.fetchone()

    def _run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name not in KEEP_ROWS:
            self._forget_rows()
            self._has_executed = True
        if name in CLEANUPS:
            return super()._run(name, *args, **kwargs)
        result = self._call(partial(getattr(self._inner, name), *args, **kwargs))
        return self if result is self._inner else result

    def _call(self, func: Callable[..., Any], *args: Any) -> Any:
        # Once, not in the hub's thread, as some drivers connect to the server for it, and to its
        # end: it would cancel the next statement, or use what that has freed.
        cancel = iter([lambda: threads.run_to_the_end(self._inner.cancel)])
        return self._own.call(func, *args, interrupt=lambda: next(cancel, int)())

    def _forget_rows(self) -> None:
        self._ahead = deque[Any]()
        self._error: BaseException | None = None  # raised by the row after those read ahead
        self._is_finished = False  # no rows are left except those read ahead
        self._ahead_rows, self._ahead_s = AHEAD_ROWS, AHEAD_S

    def _raise(self) -> None:
        """Raise the error that has ended the reading ahead."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame: a cycle

    def _execute(self, *args: Any) -> None:
        """Execute a statement and read its first rows, in the thread."""
        self._forget_rows()
        self._has_executed = True
        self._inner.execute(*args)
        if self._inner.description is not None:
            self._read_ahead()

    def _read(self, fetch: Callable[..., list[Any]], *args: Any) -> None:
        """Read more rows, in the thread: they are not lost where the greenlet is interrupted."""
        self._ahead.extend(fetch(*args))

    def _read_ahead(self) -> None:
        """Read the next row and some more, in the thread."""
        until_s = monotonic() + self._ahead_s
        try:
            while (row := self._inner.fetchone()) is not None:
                self._ahead.append(row)
                if len(self._ahead) >= self._ahead_rows or monotonic() >= until_s:
                    self._ahead_rows = min(2 * self._ahead_rows, MAX_AHEAD_ROWS)
                    self._ahead_s = min(2 * self._ahead_s, MAX_AHEAD_S)
                    return
            self._is_finished = True
        except Exception as error:
            self._error = error  # raised when the application reads this row


def _class(name: str, base: Any, original: Any, **more: Any) -> Any:
    """Return a subclass of *base* that has the attributes of pyodbc's class *original*."""
    named = {"__module__": original.__module__, "__doc__": original.__doc__}
    body: dict[str, Any] = {"__slots__": (), **named, **more}
    for each, member in vars(original).items():
        if each in vars(base) or each in vars(_InThread):
            continue
        if isinstance(member, MethodDescriptorType):
            if not each.startswith("__") or each in CLEANUPS:
                body[each] = _method(each, member)
        elif hasattr(member, "__get__") and not each.startswith("__"):
            body[each] = _attribute(each, member)
    return type(name, (base,), body)


def _method(name: str, original: Any) -> Any:
    def call(self: _InThread, *args: Any, **kwargs: Any) -> Any:
        return self._run(name, *args, **kwargs)

    call.__name__, call.__doc__ = name, original.__doc__
    return call


def _attribute(name: str, original: Any) -> property:
    def read(self: _InThread) -> Any:
        return getattr(self._inner, name)

    def write(self: _InThread, value: Any) -> None:
        # After a deadline, too: autocommit ends a transaction.
        self._own.call(setattr, self._inner, name, value, is_cleanup=True)

    return property(read, write, doc=original.__doc__)


def patch(module: ModuleType) -> None:
    """Replace the classes of the module ``pyodbc``, and its ``connect``."""
    pyodbc: Any = module
    connect = pyodbc.connect
    cursor_class = _class("Cursor", _Cursor, pyodbc.Cursor)
    kind = _class("Connection", _Connection, pyodbc.Connection, cursor_class=cursor_class)

    def connect_in_thread(*args: Any, **kwargs: Any) -> Any:
        own = OwnThread()
        return kind(own.call(partial(connect, *args, **kwargs)), own)

    connect_in_thread.__name__, connect_in_thread.__doc__ = "connect", connect.__doc__
    pyodbc.connect, pyodbc.Connection, pyodbc.Cursor = connect_in_thread, kind, cursor_class
