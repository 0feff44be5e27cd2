"""
COPY in green mode, where psycopg2 refuses it.

psycopg2 executes the statement, with BEGIN where one is due and with errors of its own, and then
refuses to move the data. libpq's functions do that here, with waits in the hub: within the
request's deadline, while other greenlets run. The wait callback stays in place.

COPY TO needs a call for each row, which is compiled where there was a C compiler (``_copying.c``),
and made by ctypes elsewhere.
"""

import ctypes
import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import psycopg2
from psycopg2 import errors
from psycopg2.extensions import TRANSACTION_STATUS_ACTIVE, cursor, encodings
from psycopg2.extensions import connection as PsycopgConnection

from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.hub.cooperate import yield_to_hub
from greenline.postgres.connection import READ_EVENT, WRITE
from greenline.postgres.psycopg2_compat import copying as libpq
from greenline.postgres.wait import break_off, wait_for_socket

READ_BYTES = 8192  # psycopg2's default
PIECE_BYTES = 65_536
# psycopg2's errors for a COPY that it has begun and does not continue.
BEGUN = {
    "can't execute COPY FROM: use the copy_from() method instead": "read",
    "can't execute COPY TO: use the copy_to() method instead": "write",
}
FATAL_ERROR = 7  # libpq's PGRES_FATAL_ERROR
SQLSTATE = ord("C")
# What PQgetCopyData returns in the place of a row.
BLOCKED, END, FAILED = 0, -1, -2

# Of a connection's address and a number of bytes: the rows that have arrived, up to the one that
# reaches the number, and what PQgetCopyData has returned last.
ReadRows = Callable[[int, int], tuple[list[bytes], int]]

_execute = cursor.execute


def rows_by_ctypes(pgconn: int, max_bytes: int) -> tuple[list[bytes], int]:
    """Read the rows that have arrived; the same as ``read_rows`` of ``_copying.c``."""
    # One call a row, into a buffer of ours: PQgetCopyData needs two more, to copy and to free it.
    get = libpq.PQgetlineAsync
    conn, size = ctypes.c_void_p(pgconn), ctypes.c_int(PIECE_BYTES)
    buffer: Any = ctypes.create_string_buffer(PIECE_BYTES)
    rows: list[bytes] = []
    # Of a row that is longer than the buffer. Nothing tells a row of exactly its size from the
    # beginning of a longer one: it is put together with the next row.
    parts: list[bytes] = []
    length, got, has_consumed = 0, 1, False
    while length < max_bytes or parts:
        got = get(conn, buffer, size)
        if got > 0:
            row = buffer[:got]
            length += got
            has_consumed = False
            if got == PIECE_BYTES:
                parts.append(row)
            elif parts:
                rows.append(b"".join([*parts, row]))
                parts = []
            else:
                rows.append(row)
        # Also for an empty row, but there is none: each ends with a newline or begins with its
        # number of columns.
        elif got == BLOCKED and not has_consumed:
            has_consumed = True
            if not libpq.PQconsumeInput(pgconn):
                got = FAILED
                break
        else:
            break
    if parts:
        rows.append(b"".join(parts))
    return rows, got


def _compiled() -> ReadRows | None:
    """Return the same compiled, None where it is not."""
    try:
        from greenline.postgres._copying import read_rows
    except ImportError:
        return None
    if libpq is None:
        return None
    names = ("PQgetCopyData", "PQconsumeInput", "PQfreemem")
    functions = [ctypes.cast(getattr(libpq, name), ctypes.c_void_p).value for name in names]
    return partial(read_rows, *functions)


compiled_rows = _compiled()
read_rows = compiled_rows or rows_by_ctypes


def copy_expert(curs: cursor, sql: Any, file: Any, size: int = READ_BYTES) -> int | None:
    """
    Execute a COPY statement, from or to a file.

    :param curs: a cursor, whose connection no other greenlet uses meanwhile.
    :param sql: the statement, as psycopg2 takes it.
    :param file: a file, read for COPY FROM and written for COPY TO.
    :param size: how much is read at a time, int. Default 8192.
    :returns: the number of rows; None where the server reports none.
    :raises psycopg2.Error: as psycopg2's ``copy_expert``.
    """
    if not hasattr(file, "read") and not hasattr(file, "write"):
        raise TypeError(
            "file must be a readable file-like object for COPY FROM;"
            " a writable file-like object for COPY TO."
        )
    try:
        _execute(curs, sql)
    except psycopg2.ProgrammingError as error:
        begun = BEGUN.get(str(error))
        conn: Any = cursor.connection.__get__(curs)  # type: ignore[attr-defined]
        if (
            begun is None
            or libpq is None
            or conn.info.transaction_status != TRANSACTION_STATUS_ACTIVE
        ):
            raise
    else:
        return None  # another statement
    return _Copy(conn).run(begun, file, size)


def copy_from_sql(conn: Any, table: str, sep: str, null: str, columns: Any, direction: str) -> str:
    """Return the statement of ``copy_from`` and ``copy_to``."""
    names = [psycopg2.extensions.quote_ident(each, conn) for each in columns or ()]
    listed = f" ({','.join(names)})" if names else ""
    quoted = psycopg2.extensions.quote_ident(table, conn)
    return (
        f"COPY {quoted}{listed} {direction} WITH DELIMITER AS {_literal(conn, sep)}"
        f" NULL AS {_literal(conn, null)}"
    )


def _literal(conn: Any, text: str) -> str:
    adapted: Any = psycopg2.extensions.adapt(text)
    adapted.prepare(conn)
    return str(adapted.getquoted().decode(encodings[conn.encoding]))


class _Copy:
    """One COPY that the server has begun."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self._pgconn = conn.pgconn_ptr
        self._codec = encodings[conn.encoding]

    def run(self, way: str, file: Any, size: int) -> int | None:
        try:
            return self._read(file, size) if way == "read" else self._write(file)
        except psycopg2.Error:
            raise
        except BaseException:
            if self._conn.info.transaction_status == TRANSACTION_STATUS_ACTIVE:
                # It was interrupted in the middle: the connection is of no further use.
                break_off(self._conn)
                PsycopgConnection.close(self._conn)
            raise

    def _read(self, file: Any, size: int) -> int | None:
        """Send what *file* has."""
        failed: bytes | None = None
        pieces = self._pieces(file, size)
        while True:
            try:
                piece = next(pieces)
            except StopIteration:
                break
            except Exception as error:
                # As psycopg2 does: the server ends the statement with an error, which has this
                # text.
                failed = f"error in .read() call: {type(error).__name__} {error}".encode()[:1000]
                break
            for begin in range(0, len(piece), PIECE_BYTES):
                self._put(piece[begin : begin + PIECE_BYTES])
                self._flush()
                self._yield()
        self._flush()
        while (done := libpq.PQputCopyEnd(self._pgconn, failed)) == 0:
            self._flush()
        if done < 0:
            self._lost()
        self._flush()
        return self._end()

    def _pieces(self, file: Any, size: int) -> Iterator[bytes]:
        """Yield what *file* has, PIECE_BYTES or more at a time."""
        read: list[bytes] = []
        length = 0
        while data := file.read(size):
            if isinstance(data, str):
                data = data.encode(self._codec)
            if not isinstance(data, bytes):
                raise TypeError(f"got {type(data).__name__} instead of bytes")
            read.append(data)
            length += len(data)
            if length >= PIECE_BYTES:
                yield b"".join(read)
                read, length = [], 0
        yield b"".join(read)

    def _put(self, data: bytes) -> None:
        while (done := libpq.PQputCopyData(self._pgconn, data, len(data))) == 0:
            self._flush()  # libpq has no memory for more
        if done < 0:
            self._lost()

    def _flush(self) -> None:
        """Send what libpq has buffered."""
        while (left := libpq.PQflush(self._pgconn)) > 0:
            # Reading too: the server may send notices and wait until they are read.
            wait_for_socket(self._conn, READ_EVENT | WRITE)
            self._consume()
        if left < 0:
            self._consume()

    def _write(self, file: Any) -> int | None:
        """Write what the server sends into *file*."""
        is_text = isinstance(file, io.TextIOBase)
        # One of Python's own gets all rows that have arrived at once. psycopg2 writes a row at a
        # time, which other code may count on.
        is_own = type(file).__module__ == "_io"
        max_bytes = PIECE_BYTES if is_own else READ_BYTES
        failed: Exception | None = None
        got = BLOCKED
        while got != END:  # or an error of the server, which the result has
            rows, got = read_rows(self._pgconn, max_bytes)
            if rows and failed is None:
                try:
                    for piece in [b"".join(rows)] if is_own else rows:
                        file.write(piece.decode(self._codec) if is_text else piece)
                except Exception as error:
                    failed = error  # the rest is read all the same: it is in the way
            if got == FAILED:
                self._lost()
            if got == BLOCKED:
                wait_for_socket(self._conn, READ_EVENT)
            elif got > 0:
                self._yield()
        found = self._end()
        if failed is not None:
            raise failed
        return found

    def _yield(self) -> None:
        """Let other greenlets run, also where neither the server nor the file lets it wait."""
        if deadline.remaining() == 0:
            raise DeadlineExceeded
        yield_to_hub()

    def _end(self) -> int | None:
        """Return the number of rows that the server reports."""
        count, failed = None, None
        while result := self._result():
            try:
                if libpq.PQresultStatus(result) == FATAL_ERROR:
                    failed = failed or self._error(result)
                elif tuples := libpq.PQcmdTuples(result):
                    count = int(tuples)
            finally:
                libpq.PQclear(result)
        with suppress(psycopg2.Error):  # lost meanwhile, which the next statement says
            PsycopgConnection.poll(self._conn)  # it passes notices and notifications on
        if failed is not None:
            raise failed
        return count

    def _result(self) -> Any:
        while libpq.PQisBusy(self._pgconn):
            wait_for_socket(self._conn, READ_EVENT)
            self._consume()
        return libpq.PQgetResult(self._pgconn)

    def _consume(self) -> None:
        if not libpq.PQconsumeInput(self._pgconn):
            self._lost()

    def _lost(self) -> NoReturn:
        text = libpq.PQerrorMessage(self._pgconn).decode(self._codec, "replace")
        break_off(self._conn)
        PsycopgConnection.close(self._conn)
        raise psycopg2.OperationalError(text)

    def _error(self, result: Any) -> psycopg2.Error:
        """Return psycopg2's error for a result."""
        text = libpq.PQresultErrorMessage(result).decode(self._codec, "replace")
        code = (libpq.PQresultErrorField(result, SQLSTATE) or b"").decode()
        try:
            kind: Any = errors.lookup(code)
        except KeyError:
            kind = psycopg2.DatabaseError
        severity, _, rest = text.partition(":  ")
        found: psycopg2.Error = kind(rest if severity in ("ERROR", "FATAL", "PANIC") else text)
        found.__setstate__({"pgerror": text, "pgcode": code})  # type: ignore[no-untyped-call]
        return found
