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

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from math import fabs
from resource import RUSAGE_THREAD, getrusage
from sqlite3 import dbapi2 as sqlite3  # the package itself is not complete yet
from time import monotonic, thread_time
from types import BuiltinFunctionType
from typing import Any

from gevent.event import Event

from greenline.deadline import wait_in
from greenline.offload.threads import OwnThread, can_wait, get_ident, native
from greenline.turn import give_way

# The originals: this module is imported before sqlite3's names are replaced.
_Connection: Any = sqlite3.Connection
_Cursor: Any = sqlite3.Cursor
_connect: Any = sqlite3.connect

FIRST_RETRY_S, LAST_RETRY_S = 0.001, 0.05
RETRIES_PER_S = 400  # of all connections that wait for one database
AHEAD_ROWS = 100
AHEAD_S = 0.001
CHUNK_ROWS = 1000

QUICK_S = 0.0005  # of the CPU, without reading from the disk
MIN_QUICK_RUNS = 2  # in the thread, one after the other, before a query runs in the greenlet
SLOW_RUNS = 100  # in the thread, after a slow one
MAX_HERE_S = 0.002  # of a query in the greenlet
OPERATIONS = 1000  # of sqlite's machine between two looks at the time
YIELD_EVERY_S = 0.005
MAX_QUERIES = 1000  # whose pace is known, for each database

SQLITE_BUSY = 5
SQLITE_BUSY_SNAPSHOT = 517
KEYWORD = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*(\w*)", re.DOTALL)
# These take no lock for reading that would have to become one for writing.
LOCKLESS = {"BEGIN", "SAVEPOINT", "RELEASE", "COMMIT", "END", "PRAGMA", "ATTACH", "DETACH"}
READING = {"SELECT", "VALUES", "WITH", "PRAGMA", "EXPLAIN"}
PARAMETERS = (
    "timeout", "detect_types", "isolation_level", "check_same_thread", "factory",
    "cached_statements", "uri",
)  # fmt: skip
FACTORY_POSITION = 5

CONNECT, CLOSE = "connect", "close"  # keys of _paces, as queries are

# The connections that wait for a lock, by database, the first one first.
_waiting: dict[str, list["_Retries"]] = {}
# By database and query: how often it was quick, or below 0 how often it is to run in the thread.
_paces: dict[str, dict[str, int]] = {}


class _Guard:
    """Called by sqlite now and then while a query runs in a greenlet: ends one that is slow."""

    # Without a reference to its connection: only the garbage collector would end such a cycle.

    def begin(self) -> None:
        """Watch from now on."""
        self.has_tripped = False
        self._until_s = monotonic() + MAX_HERE_S
        self._before = getrusage(RUSAGE_THREAD)

    def __call__(self) -> bool:
        self.has_tripped = self.is_late()
        return self.has_tripped

    def is_late(self) -> bool:
        """Return whether the query has taken too long; not if only the machine was busy."""
        if monotonic() < self._until_s:
            return False
        before, now = self._before, getrusage(RUSAGE_THREAD)
        used_s = now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
        # A thread that gave the processor away by itself waited for the disk or a lock.
        return used_s > MAX_HERE_S or now.ru_nvcsw != before.ru_nvcsw


def _keyword(sql: Any) -> str:
    if isinstance(sql, str) and sql[:7] in ("SELECT ", "select "):
        return "SELECT"
    found = KEYWORD.match(sql) if isinstance(sql, str) else None
    return found[1].upper() if found else ""


class Connection(_Connection):  # type: ignore[misc]
    """A connection whose calls run in a thread of its own."""

    __module__ = "sqlite3"  # some libraries look at it
    _own: OwnThread | None = None
    _row_factory: Any = None
    _is_closed = False
    _has_read = False  # in this transaction, so that sqlite does not wait for the lock to write
    _checks_thread = True
    _owner = 0
    _may_run_here = True  # no callback of the application's that might wait
    _is_guarded = False
    _trace: Any = None
    _yielded_s = 0.0

    def __init__(self, database: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.update(zip(PARAMETERS, args, strict=False))
        timeout_s = max(fabs(kwargs.get("timeout", 5.0)), 0.0)
        checks_thread = bool(kwargs.get("check_same_thread", True))
        kwargs.update(timeout=0, check_same_thread=False)
        own = OwnThread()
        name = _name(database)
        _run_or_hand_over(own, name, CONNECT, _initialize, self, database, kwargs)
        # Not before: a second call of sqlite3's __init__ clears the attributes.
        self._own = own
        self._timeout_s = timeout_s
        self._checks_thread = checks_thread
        self._owner = get_ident()
        self._database = name
        # Databases in memory have no name of their own.
        self._paces = {} if "memory" in name else _paces.setdefault(name, {})
        self._guard = _Guard()

    @property
    def row_factory(self) -> Any:
        """Makes a row of a tuple: called in the caller's greenlet."""
        return self._row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self._row_factory = factory

    @property
    def isolation_level(self) -> Any:
        """How a transaction begins; None is autocommit. Setting None commits."""
        return _Connection.isolation_level.__get__(self)

    @isolation_level.setter
    def isolation_level(self, level: Any) -> None:
        self._run(_Connection.isolation_level.__set__, self, level)

    if hasattr(_Connection, "autocommit"):  # Python 3.12

        @property
        def autocommit(self) -> Any:
            """Whether transactions begin by themselves; setting it commits or begins one."""
            return _Connection.autocommit.__get__(self)

        @autocommit.setter
        def autocommit(self, value: Any) -> None:
            self._run(_Connection.autocommit.__set__, self, value)

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """Return a cursor."""
        self._check_thread()
        if not args and not kwargs:
            args = (Cursor,)
        cursor = _Connection.cursor(self, *args, **kwargs)
        if self._row_factory is not None:
            cursor.row_factory = self._row_factory
        return cursor

    def execute(self, *args: Any) -> Any:
        """Execute a statement with a new cursor."""
        return Connection.cursor(self).execute(*args)

    def executemany(self, *args: Any) -> Any:
        """Execute a statement for each set of parameters with a new cursor."""
        return Connection.cursor(self).executemany(*args)

    def executescript(self, *args: Any) -> Any:
        """Execute several statements with a new cursor."""
        return Connection.cursor(self).executescript(*args)

    def commit(self) -> None:
        """Commit the transaction; a reader that is in the way is waited for."""
        self._run(_Connection.commit, self)
        self._has_read = False

    def rollback(self) -> None:
        """Roll the transaction back."""
        self._run(_Connection.rollback, self, keyword="ROLLBACK")
        self._has_read = False

    def close(self) -> None:
        """Close the connection and give its thread back."""
        self._check_thread()
        own = self._own
        if own is None:
            _Connection.close(self)
            return
        try:
            if can_wait():
                # Another request may open the database meanwhile: to close the last connection of
                # a database with a write-ahead log, and to open the first one, costs the most.
                give_way()
        finally:
            if self._is_closed or self.total_changes:
                # It may move what was written from the log into the database, or raise an error.
                own.call(_Connection.close, self, is_cleanup=True)
            else:
                _run_or_hand_over(own, self._database, CLOSE, _Connection.close, self)
        self._is_closed = True
        own.release()
        self._let_next_try("ROLLBACK")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            try:
                Connection.commit(self)
            except BaseException:
                Connection.rollback(self)
                raise
        else:
            Connection.rollback(self)

    def backup(self, *args: Any, **kwargs: Any) -> None:
        """Copy the database into another connection's."""
        self._run(self._waiting_in_sqlite, partial(_Connection.backup, self, *args, **kwargs))

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        """Open a blob."""
        opened = partial(_Connection.blobopen, self, *args, **kwargs)
        return self._run(self._waiting_in_sqlite, opened)

    def create_function(self, name: Any, narg: Any, func: Any, **kwargs: Any) -> None:
        """Create a function; what is neither built in nor deterministic might wait."""
        if not (kwargs.get("deterministic") or isinstance(func, BuiltinFunctionType)):
            self._run_in_thread_only()
        self._briefly(lambda: _Connection.create_function(self, name, narg, func, **kwargs))

    def set_authorizer(self, *args: Any, **kwargs: Any) -> None:
        """Set the function that allows or denies access."""
        self._run_in_thread_only()
        self._briefly(lambda: _Connection.set_authorizer(self, *args, **kwargs))

    def set_progress_handler(self, *args: Any, **kwargs: Any) -> None:
        """Set the function that is called while a statement runs."""
        self._run_in_thread_only()
        self._briefly(lambda: _Connection.set_progress_handler(self, *args, **kwargs))

    def set_trace_callback(self, *args: Any, **kwargs: Any) -> None:
        """Set the function that is called with each statement."""
        self._run_in_thread_only()
        self._briefly(lambda: _Connection.set_trace_callback(self, *args, **kwargs))
        self._trace = next(iter((*args, *kwargs.values())), None)

    def _run_in_thread_only(self) -> None:
        self._may_run_here = False
        if self._is_guarded:
            self._set_guard(None)

    def _set_guard(self, guard: _Guard | None) -> None:
        _Connection.set_progress_handler(self, guard, OPERATIONS)
        self._is_guarded = guard is not None

    def _check_thread(self) -> None:
        """Refuse a foreign native thread, as sqlite3 does; all greenlets of one are the same."""
        if not self._checks_thread or self._own is None:
            return
        ident = get_ident()
        if ident != self._owner and not self._own.is_current():
            raise sqlite3.ProgrammingError(
                "SQLite objects created in a thread can only be used in that same thread. "
                f"The object was created in thread id {self._owner} and this is thread id {ident}."
            )

    def _briefly(self, func: Callable[..., Any], *args: Any) -> Any:
        """Call a function that neither waits nor takes long; in the thread if that is at work."""
        self._check_thread()
        own = self._own
        if own is None or own.is_idle:
            return func(*args)
        return own.call(func, *args, is_cleanup=True)

    def _run(self, func: Callable[..., Any], *args: Any, keyword: str = "COMMIT") -> Any:
        """
        Call *func* in the thread, again and again while another connection holds the lock.

        :param keyword: that its statement begins with.
        """
        self._check_thread()
        own = self._own
        if own is None or self._is_closed:
            return func(*args)  # it raises what is wrong
        if self._is_guarded and own.is_idle:
            self._set_guard(None)  # in the thread it would only wait for the interpreter
        self._yielded_s = monotonic()
        # The end of a transaction is short and its result matters: it is waited for.
        interrupt = None if keyword in ("COMMIT", "ROLLBACK") else self._interrupt
        is_cleanup = keyword == "ROLLBACK"
        try:
            result = own.call(func, *args, interrupt=interrupt, is_cleanup=is_cleanup)
        except sqlite3.OperationalError as error:
            if self._timeout_s == 0 or not self._would_wait(error, keyword):
                raise
        else:
            self._let_next_try(keyword)
            return result
        until_s = monotonic() + self._timeout_s
        with _Retries(self._database, keyword) as retries:
            while True:
                retries.wait(until_s)
                try:
                    result = own.call(func, *args, interrupt=interrupt)
                except sqlite3.OperationalError as error:
                    if monotonic() >= until_s or not self._would_wait(error, keyword):
                        raise
                else:
                    break
        self._let_next_try(keyword)
        return result

    def _let_next_try(self, keyword: str) -> None:
        """Wake a connection that waits for a lock of this one, if it may have been released."""
        if _waiting and (self._is_closed or not self.in_transaction):
            _wake(self._database, was_reader=keyword == "SELECT")

    def _would_wait(self, error: sqlite3.OperationalError, keyword: str) -> bool:
        """Return whether sqlite itself would have waited for the lock."""
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF != SQLITE_BUSY or code == SQLITE_BUSY_SNAPSHOT:
            return False
        if str(error) != "database is locked":  # a statement of its own is not finished
            return False
        # A reader that wants to write and a writer that waits for readers would wait for each
        # other: sqlite refuses the reader at once.
        return not self._has_read or keyword in LOCKLESS

    def _interrupt(self) -> None:
        _Connection.interrupt(self)

    def _waiting_in_sqlite(self, func: Callable[..., Any], *args: Any) -> Any:
        """
        Call what cannot be tried again, in the thread, with sqlite's own wait for locks.

        It occupies a thread that nothing else needs: the holder of the lock has its own.
        """
        _pragma(self, f"busy_timeout={self._timeout_s * 1000:.0f}")
        try:
            return func(*args)
        finally:
            with suppress(sqlite3.Error):
                # The application's statement may have set another one.
                self._timeout_s = _pragma(self, "busy_timeout") / 1000
                _pragma(self, "busy_timeout=0")


def _pragma(conn: Any, text: str) -> Any:
    """Execute a statement of ours, which the application's trace callback does not see."""
    if conn._trace is not None:
        _Connection.set_trace_callback(conn, None)
    try:
        return _Cursor.execute(_Cursor(conn), f"PRAGMA {text}").fetchone()[0]
    finally:
        if conn._trace is not None:
            _Connection.set_trace_callback(conn, conn._trace)


def _run_or_hand_over(
    own: OwnThread, database: str, what: str, func: Callable[..., Any], *args: Any
) -> None:
    """Open or close a connection: in the caller's greenlet if it was quick before."""
    paces = _paces.setdefault(database, {})
    if paces.get(what, 0) < MIN_QUICK_RUNS or not own.is_idle:
        own.call(_measured, paces, what, func, *args, is_cleanup=what == CLOSE)
        return
    started_s = monotonic()
    func(*args)
    if monotonic() - started_s > MAX_HERE_S:
        paces[what] = -SLOW_RUNS


def _measured(paces: dict[str, int], what: str, func: Callable[..., Any], *args: Any) -> None:
    """Run in a thread: call *func*, and note whether it was quick."""
    read = getrusage(RUSAGE_THREAD).ru_inblock
    started_s = thread_time()
    func(*args)
    is_quick = thread_time() - started_s < QUICK_S
    if not is_quick or getrusage(RUSAGE_THREAD).ru_inblock != read:
        paces[what] = -SLOW_RUNS
    elif len(paces) < MAX_QUERIES:
        paces[what] = paces.get(what, 0) + 1
    else:
        paces.clear()


def _initialize(conn: Connection, database: Any, kwargs: dict[str, Any]) -> None:
    _Connection.__init__(conn, database, **kwargs)


def _brief(name: str) -> Any:
    """Return a method of a connection that only notes something."""
    original = getattr(_Connection, name)

    def method(self: Connection, *args: Any, **kwargs: Any) -> Any:
        return self._briefly(lambda: original(self, *args, **kwargs))

    method.__name__ = name
    method.__qualname__ = f"Connection.{name}"
    method.__doc__ = original.__doc__
    return method


for _method in (
    "create_aggregate", "create_collation", "create_window_function", "deserialize",
    "enable_load_extension", "getlimit", "load_extension", "serialize", "setlimit",
):  # fmt: skip
    if hasattr(_Connection, _method):
        setattr(Connection, _method, _brief(_method))


class Cursor(_Cursor):  # type: ignore[misc]
    """A cursor of :class:`Connection`, which reads some rows ahead."""

    __module__ = "sqlite3"
    _row_factory: Any = None
    _ahead: deque[Any]
    _error: BaseException | None = None  # of the row after those that were read ahead
    _is_closed = False
    _is_finished = True  # no row is left but those read ahead
    _writes = False
    _earlier_rows = 0  # counted by the chunks before the last one

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ahead = deque()

    row_factory = Connection.row_factory

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed, -1 where that is unknown."""
        count: int = _Cursor.rowcount.__get__(self)
        return count + self._earlier_rows

    def execute(self, sql: Any, parameters: Any = (), /) -> "Cursor":
        """Execute a statement."""
        keyword = _keyword(sql)
        conn = self._connection()
        if keyword != "SELECT":
            conn._run(self._execute, sql, parameters, keyword, keyword=keyword)
        elif not self._execute_here(conn, sql, parameters):
            conn._run(self._execute_measured, sql, parameters, keyword=keyword)
        return self

    def executemany(self, sql: Any, parameters: Any, /) -> "Cursor":
        """Execute a statement for each set of parameters."""
        conn = self._connection()
        keyword = _keyword(sql)
        if not hasattr(parameters, "__next__"):
            conn._run(self._executemany, sql, parameters, keyword, keyword=keyword)
            return self
        # An iterator is the application's code: it runs in its own greenlet.
        total = 0
        for chunk in _chunks(parameters):
            conn._run(self._executemany, sql, chunk, keyword, keyword=keyword)
            self._earlier_rows = total
            total = self.rowcount
        return self

    def executescript(self, script: Any, /) -> "Cursor":
        """Execute several statements, after a commit."""
        self._forget_rows()
        conn = self._connection()
        conn._run(conn._waiting_in_sqlite, _Cursor.executescript, self, script, keyword="")
        return self

    def fetchone(self) -> Any:
        """Return the next row, None after the last one."""
        if not self._has(1):
            return None
        row = self._ahead.popleft()
        return row if self._row_factory is None else self._row_factory(self, row)

    def fetchmany(self, size: Any = None) -> list[Any]:
        """Return the next rows, at most *size* of them, ``arraysize`` by default."""
        if size is None:
            size = self.arraysize
        self._has(size)
        taken = min(size, len(self._ahead)) if size > 0 else len(self._ahead)
        return self._made([self._ahead.popleft() for _ in range(taken)])

    def fetchall(self) -> list[Any]:
        """Return all rows that remain."""
        self._has(-1)
        rows = list(self._ahead)
        self._ahead.clear()
        return self._made(rows)

    def __next__(self) -> Any:
        if not self._has(1):
            raise StopIteration
        row = self._ahead.popleft()
        return row if self._row_factory is None else self._row_factory(self, row)

    def close(self) -> None:
        """Close the cursor."""
        self._connection()._briefly(_Cursor.close, self)
        self._forget_rows()
        self._is_closed = True

    def _connection(self) -> Connection:
        conn: Connection = self.connection
        if conn is None:
            _Cursor.fetchone(self)  # it raises what is wrong
        return conn

    def _made(self, rows: list[Any]) -> list[Any]:
        factory = self._row_factory
        return rows if factory is None else [factory(self, row) for row in rows]

    def _forget_rows(self) -> None:
        self._ahead = deque()
        self._error = None
        self._is_finished = True
        self._earlier_rows = 0

    def _has(self, count: int) -> bool:
        """Read until *count* rows are ahead, all if it is not above 0; return whether one is."""
        conn = self._connection()
        conn._check_thread()
        ahead = self._ahead
        if self._is_closed or conn._is_closed:
            _Cursor.fetchone(self)  # it raises what is wrong
        if len(ahead) < count or count <= 0:
            if not self._is_finished and self._error is None:
                conn._run(self._read, count, keyword="")
                ahead = self._ahead
            if self._error is not None and (not ahead or count <= 0):
                error, self._error = self._error, None
                ahead.clear()
                try:
                    raise error
                finally:
                    del error
        return bool(ahead)

    def _execute_here(self, conn: Connection, sql: str, parameters: Any) -> bool:
        """Execute a query in the caller's greenlet; return False if the thread is to do it."""
        own = conn._own
        if (
            conn._paces.get(sql, 0) < MIN_QUICK_RUNS
            or not conn._may_run_here
            or conn._is_closed
            or self._is_closed
            or own is None
            or not own.is_idle
        ):
            return False
        conn._check_thread()
        started_s = monotonic()
        if started_s - conn._yielded_s > YIELD_EVERY_S and can_wait():
            give_way()
            conn._yielded_s = monotonic()
            if not own.is_idle:
                return False
        # No switch of greenlets from here on.
        if not conn._is_guarded:
            conn._set_guard(conn._guard)
        guard = conn._guard
        guard.begin()
        try:
            self._execute(sql, parameters, "SELECT")
        except sqlite3.OperationalError as error:
            if not guard.has_tripped and error.sqlite_errorcode & 0xFF != SQLITE_BUSY:
                raise
            return False
        finally:
            if guard.has_tripped or guard.is_late():
                conn._paces[sql] = 0  # something else may have delayed it: the thread measures it
        conn._let_next_try("SELECT")
        return not guard.has_tripped

    def _execute_measured(self, sql: Any, parameters: Any) -> None:
        """Run in the thread: execute a query, and note whether it was quick."""
        _measured(self._connection()._paces, sql, self._execute, sql, parameters, "SELECT")

    def _execute(self, sql: Any, parameters: Any, keyword: str) -> None:
        """Execute, and read the first rows."""
        self._forget_rows()
        conn = self._connection()
        was_in_transaction = conn.in_transaction
        if keyword == "PRAGMA" and "busy_timeout" in sql.lower():
            conn._waiting_in_sqlite(_Cursor.execute, self, sql, parameters)
        else:
            _Cursor.execute(self, sql, parameters)
        self._note_read(conn, was_in_transaction, keyword)
        self._is_finished = self.description is None
        # What writes is finished with its last row, which may find the database locked.
        self._writes = keyword not in READING or (keyword == "WITH" and "RETURNING" in sql.upper())
        if not self._is_finished and not self._writes:
            self._read_ahead(1)

    def _executemany(self, sql: Any, parameters: Any, keyword: str) -> None:
        self._forget_rows()
        conn = self._connection()
        was_in_transaction = conn.in_transaction
        if was_in_transaction or self._connection().isolation_level is not None:
            _Cursor.executemany(self, sql, parameters)
        else:
            # Each row is a transaction: not all of them could be tried again.
            conn._waiting_in_sqlite(_Cursor.executemany, self, sql, parameters)
        self._note_read(conn, was_in_transaction, keyword)

    def _note_read(self, conn: Connection, was_in_transaction: bool, keyword: str) -> None:
        if not conn.in_transaction:
            conn._has_read = False
        elif was_in_transaction and keyword not in LOCKLESS:
            conn._has_read = True

    def _read(self, count: int) -> None:
        """Run in the thread: read at least *count* rows, all if it is not above 0."""
        conn = self._connection()
        if self._writes and not conn.in_transaction:
            conn._waiting_in_sqlite(self._read_ahead, count)
        else:
            self._read_ahead(count)

    def _read_ahead(self, count: int) -> None:
        ahead = self._ahead
        read = _Cursor.__next__
        until_s = monotonic() + AHEAD_S
        try:
            if count <= 0:
                ahead.extend(_Cursor.fetchall(self))
                self._is_finished = True
                return
            while len(ahead) < count or (len(ahead) < AHEAD_ROWS and monotonic() < until_s):
                ahead.append(read(self))
        except StopIteration:
            self._is_finished = True
        except Exception as error:
            self._error = error  # raised where the application reads this row
            self._is_finished = True


class _Retries:
    """The place of a connection among those that wait for the locks of a database."""

    def __init__(self, database: str, keyword: str) -> None:
        self.commits = keyword == "COMMIT"
        self.is_writer = keyword not in ("SELECT", "COMMIT")
        self._database = database
        self._event = Event()
        self._delay_s = FIRST_RETRY_S

    def __enter__(self) -> "_Retries":
        waiting = _waiting.setdefault(self._database, [])
        if self.is_writer:
            # Those before it are woken first: it may try less often.
            self._delay_s = max(FIRST_RETRY_S, len(waiting) / RETRIES_PER_S)
        waiting.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        waiting = _waiting[self._database]
        waiting.remove(self)
        if not waiting:
            del _waiting[self._database]

    def wait(self, until_s: float) -> None:
        """Wait until the next attempt: a lock was released in this process, or some time passed."""
        delay_s = min(self._delay_s, max(until_s - monotonic(), 0.0))
        others = len(_waiting[self._database])
        self._delay_s = min(self._delay_s * 2, max(LAST_RETRY_S, others / RETRIES_PER_S))
        if can_wait():
            wait_in(self._event.wait, delay_s)
            self._event.clear()
        else:
            native.sleep(delay_s)

    def wake(self) -> None:
        """End the wait, or the next one."""
        self._event.set()


def _wake(database: str, was_reader: bool) -> None:
    """Wake those that may have what was released."""
    has_writer = False
    for retries in _waiting.get(database, ()):
        # A reader is in the way of a commit alone. Of those that want to write only one may.
        if retries.commits or not (was_reader or (retries.is_writer and has_writer)):
            retries.wake()
        has_writer |= retries.is_writer


def _name(database: Any) -> str:
    """Return what connections to the same database have in common."""
    try:
        return os.path.abspath(os.fsdecode(database))
    except (TypeError, ValueError):  # sqlite3 raises an error itself
        return ""


def _chunks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield *rows* in lists; an error of theirs is raised after those before it."""
    chunk: list[Any] = []
    while True:
        try:
            for row in islice(rows, CHUNK_ROWS):
                chunk.append(row)
        except BaseException:
            if chunk:
                yield chunk
            raise
        yield chunk
        if len(chunk) < CHUNK_ROWS:
            return
        chunk = []


def connect(*args: Any, **kwargs: Any) -> Any:
    """Open a connection to a database; parameters as in :func:`sqlite3.connect`."""
    factory = kwargs.get("factory", Connection)
    if len(args) > FACTORY_POSITION:
        factory = args[FACTORY_POSITION]
    return factory(*args, **kwargs)


def patch() -> None:
    """Replace the names of sqlite3, wherever a module has taken them already."""
    replaced = {id(_connect): connect, id(_Connection): Connection, id(_Cursor): Cursor}
    for module in list(sys.modules.values()):
        if module is sys.modules[__name__]:
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in replaced:
                setattr(module, name, replaced[id(value)])
