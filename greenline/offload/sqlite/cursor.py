"""Replace ``sqlite3.Cursor`` by one that runs in its connection's thread and reads rows ahead."""

from collections import deque
from collections.abc import Iterator
from itertools import islice, repeat
from sqlite3 import dbapi2 as sqlite3  # the package itself is not complete yet
from time import monotonic
from typing import Any

from greenline.offload.sqlite.busy import LOCKLESS
from greenline.offload.sqlite.quick import is_large
from greenline.offload.sqlite.statement import CHANGES, PLAN, SCRIPT, Statement, parse
from greenline.offload.threads import get_ident

_Cursor: Any = sqlite3.Cursor  # the original: the name in sqlite3 is replaced later

AHEAD_ROWS = 100  # read ahead at first, and twice as many each time
MAX_AHEAD_ROWS = 1000
AHEAD_S = 0.001
STEP_ROWS = 16  # between two looks at the clock
CHUNK_ROWS = 1000

OF_COMMITS = "synchronous", "journal_mode"  # pragmas that tell whether these wait for the disk
READING = {"SELECT", "VALUES", "WITH", "PRAGMA", "EXPLAIN"}


class Cursor(_Cursor):  # type: ignore[misc]
    """Execute statements in the thread of a connection, and read some rows ahead."""

    __module__ = "sqlite3"
    _row_factory: Any = None
    _ahead: deque[Any]
    _error: BaseException | None = None  # raised by the row after those read ahead
    _is_closed = False
    _is_finished = True  # no rows are left except those read ahead
    _ahead_rows = AHEAD_ROWS  # to read ahead the next time
    _writes = False
    _earlier_rows = 0  # rowcount of the chunks before the last one

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ahead = deque()

    @property
    def row_factory(self) -> Any:
        """The function that makes a row of a tuple; called in the caller's greenlet."""
        return self._row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self._row_factory = factory

    @property
    def rowcount(self) -> int:
        """The number of rows that the last statement changed, -1 where it is unknown."""
        count: int = _Cursor.rowcount.__get__(self)
        return count + self._earlier_rows

    def execute(self, sql: Any, parameters: Any = (), /) -> "Cursor":
        """Execute a statement; parameters as in sqlite3."""
        statement = parse(sql)
        conn = self._connection()
        if statement.keyword in CHANGES and parameters and is_large(parameters):
            statement = statement._replace(key="", is_large=True)
        if statement.returns and not conn.in_transaction and conn._commits_itself():
            # In the thread: it commits with its last row, and may have to wait for readers then.
            statement = statement._replace(key="", changes=False, begins_to_write=False)
        conn._run(self._execute, sql, parameters, statement, statement=statement)
        return self

    def executemany(self, sql: Any, parameters: Any, /) -> "Cursor":
        """Execute a statement for each set of parameters; parameters as in sqlite3."""
        conn = self._connection()
        statement = parse(sql)._replace(key="")
        if not hasattr(parameters, "__next__"):
            conn._run(self._executemany, sql, parameters, statement, statement=statement)
            return self
        # An iterator is code of the application, so it runs in the caller's greenlet.
        total = 0
        for chunk in _chunks(parameters):
            conn._run(self._executemany, sql, chunk, statement, statement=statement)
            self._earlier_rows = total
            total = self.rowcount
        return self

    def executescript(self, script: Any, /) -> "Cursor":
        """Execute several statements, after a commit."""
        self._forget_rows()
        conn = self._connection()
        func = _Cursor.executescript
        conn._run(conn._waiting_in_sqlite, func, self, script, statement=SCRIPT)
        conn._syncs = None  # it may have set something
        return self

    def fetchone(self) -> Any:
        """Return the next row, None after the last one."""
        # Called for each row, as __next__ is: a function for the usual case would cost both a call.
        ahead, conn = self._ahead, self.connection
        if ahead and not conn._is_closed and conn._owner == get_ident():
            row = ahead.popleft()
        elif self._has(1):
            row = self._ahead.popleft()
        else:
            return None
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
        ahead, conn = self._ahead, self.connection
        if ahead and not conn._is_closed and conn._owner == get_ident():
            row = ahead.popleft()
        elif self._has(1):
            row = self._ahead.popleft()
        else:
            raise StopIteration
        return row if self._row_factory is None else self._row_factory(self, row)

    def close(self) -> None:
        """Close the cursor."""
        self._connection()._briefly(_Cursor.close, self)
        self._forget_rows()
        self._is_closed = True

    def _connection(self) -> Any:
        conn = self.connection
        if conn is None:
            _Cursor.fetchone(self)  # raises the error of sqlite3
        return conn

    def _made(self, rows: list[Any]) -> list[Any]:
        factory = self._row_factory
        return rows if factory is None else [factory(self, row) for row in rows]

    def _forget_rows(self) -> None:
        if self._ahead:
            self._ahead = deque()
        self._error = None
        self._is_finished = True
        self._ahead_rows = AHEAD_ROWS
        self._earlier_rows = 0

    def _has(self, count: int) -> bool:
        """
        Read until *count* rows are ahead, or all rows for a count of 0 or less.

        :returns: whether a row is ahead.
        """
        conn = self._connection()
        conn._check_thread()
        ahead = self._ahead
        if self._is_closed or conn._is_closed:
            _Cursor.fetchone(self)  # raises the error of sqlite3
        if len(ahead) < count or count <= 0:
            if not self._is_finished and self._error is None:
                conn._run(self._read, count, statement=SCRIPT)
                ahead = self._ahead
            if self._error is not None and (not ahead or count <= 0):
                error, self._error = self._error, None
                ahead.clear()
                try:
                    raise error
                finally:
                    del error
        return bool(ahead)

    def _execute(self, sql: Any, parameters: Any, statement: Statement) -> None:
        """Execute a statement and read its first rows."""
        self._forget_rows()
        conn = self._connection()
        keyword = statement.keyword
        was_in_transaction = conn.in_transaction
        if keyword == "UPDATE" and was_in_transaction:
            self._note_plan(conn, sql, parameters, statement)  # before: it clears SQL's changes()
        if keyword == "PRAGMA" and "busy_timeout" in sql.lower():
            conn._waiting_in_sqlite(_Cursor.execute, self, sql, parameters)
        else:
            _Cursor.execute(self, sql, parameters)
        self._note_read(conn, was_in_transaction, keyword)
        if keyword in ("ATTACH", "DETACH") or (
            keyword == "PRAGMA"
            and (not statement.key or any(name in sql.lower() for name in OF_COMMITS))
        ):
            conn._syncs = None
        self._is_finished = self.description is None
        # A statement that writes ends with its last row, and may find the database locked then.
        self._writes = keyword not in READING or (keyword == "WITH" and "RETURNING" in sql.upper())
        if not self._is_finished:
            self._read(1)  # at once, because one that writes holds the lock until its end

    def _executemany(self, sql: Any, parameters: Any, statement: Statement) -> None:
        self._forget_rows()
        conn = self._connection()
        was_in_transaction = conn.in_transaction
        if was_in_transaction or not conn._commits_itself():
            _Cursor.executemany(self, sql, parameters)
        else:
            # In autocommit each row is a transaction, so a repetition would write some rows twice.
            conn._waiting_in_sqlite(_Cursor.executemany, self, sql, parameters)
        self._note_read(conn, was_in_transaction, statement.keyword)

    def _note_plan(self, conn: Any, sql: str, parameters: Any, statement: Statement) -> None:
        """Note whether an update finds one row by its number, so that it is always quick."""
        known, key = conn._paces, statement.plan
        if key and key not in known and statement.key in known and conn._may_run_here:
            plan = _Cursor.execute(_Cursor(conn), PLAN + sql, parameters).fetchall()
            known[key] = all("INTEGER PRIMARY KEY (rowid=?)" in str(step) for step in plan)

    def _note_read(self, conn: Any, was_in_transaction: bool, keyword: str) -> None:
        if not conn.in_transaction:
            conn._has_read = False
        elif was_in_transaction and keyword not in LOCKLESS:
            conn._has_read = True

    def _read(self, count: int) -> None:
        """Read at least *count* rows; all rows for a count of 0 or less."""
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
            # Some more than needed: a hand-over to the thread for each row would cost more.
            most, step = self._ahead_rows, 1
            self._ahead_rows = min(2 * most, MAX_AHEAD_ROWS)
            while len(ahead) < count or (len(ahead) < most and monotonic() < until_s):
                size = len(ahead) + step
                # It has the rows before an error or the end, as a loop in Python would.
                ahead.extend(map(read, repeat(self, step)))
                if len(ahead) < size:
                    self._is_finished = True
                    return
                step = min(2 * step, STEP_ROWS)
        except Exception as error:
            self._error = error  # raised when the application reads this row
            self._is_finished = True


def _chunks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield *rows* in lists; an error of the iterator is raised after the rows before it."""
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
