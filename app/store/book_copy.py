"""
All books with their authors and genres, by COPY: a line of JSON a book, as a client sends it.

COPY needs a connection of its own in a process without psycopg2's green callback: a command's, not
a worker's.
"""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec
import psycopg2
from psycopg2.errors import ForeignKeyViolation
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from app.records import BookInput
from app.store.queries import read

COPY_BUFFER_BYTES = 64 * 1024
# JSON has these two characters as \u0001 and \u0002 only: nothing in it is quoted or divided, and
# COPY passes on each line as it is.
_FORMAT = "with (format csv, quote e'\\x01', delimiter e'\\x02', encoding 'utf8')"
_EXPORT = f"copy ({read('books/export')}) to stdout {_FORMAT}"
_SENT = read("books/sent")
_SEND = f"copy sent_books (line, book) from stdin {_FORMAT}"
_IMPORT = read("books/import")
_ANALYZE = "analyze books, authors, genres, book_authors, book_genres"


class BookRefused(Exception):
    """A line is no book, or none that the database takes; the message has the line's number."""


def export_books(conn: Connection, stream: BinaryIO) -> int:
    """
    Write all books, in the order of their ids and as they are at one moment.

    :returns: how many there were.
    """
    with conn.cursor() as cursor:
        cursor.copy_expert(_EXPORT, stream)
        return cursor.rowcount


def import_books(conn: Connection, lines: Iterable[tuple[int, bytes]]) -> int:
    """
    Add the books of *lines*, which come with their numbers: all of them, or none.

    :returns: how many there were.
    :raises BookRefused: names the first line that is no book, or that a constraint refuses.
    """
    with conn, conn.cursor() as cursor:
        cursor.execute(_SENT)
        rows = _BookRows(lines)
        try:
            cursor.copy_expert(_SEND, rows, COPY_BUFFER_BYTES)  # type: ignore[arg-type]  # it only reads
        except psycopg2.Error:
            if rows.error is not None:
                # libpq only has the text of what was raised in read().
                raise rows.error from None
            raise
        cursor.execute("analyze sent_books")
        refused = _insert(cursor, 0, rows.last)
        if refused is not None:
            raise _first_refused(cursor, rows.last, refused)
        # Until autovacuum has done it, pages of books would be planned as if there were none.
        cursor.execute(_ANALYZE)
        return rows.count


class _BookRows:
    """What COPY reads: lines that are books, as *line*, delimiter and JSON."""

    def __init__(self, lines: Iterable[tuple[int, bytes]]) -> None:
        self.count = self.last = 0
        self.error: Exception | None = None
        self._rows = self._checked(lines)
        self._rest = b""

    def read(self, size: int = COPY_BUFFER_BYTES, /) -> bytes:
        """Return *size* bytes at most, none at the end."""
        try:
            while len(self._rest) < size and (row := next(self._rows, None)):
                self._rest += row
        except Exception as error:
            self.error = error
            raise
        given, self._rest = self._rest[:size], self._rest[size:]
        return given

    def _checked(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        for number, line in lines:
            try:
                book = msgspec.json.decode(line, type=BookInput)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise BookRefused(f"line {number}: {error}") from error
            self.count, self.last = self.count + 1, number
            yield b"%d\x02%b\n" % (number, msgspec.json.encode(book))


def _insert(cursor: Cursor, after: int, last: int) -> psycopg2.Error | None:
    """Add the books of some lines; return why they are refused, None when it is done."""
    cursor.execute("savepoint before_lines")
    try:
        cursor.execute(_IMPORT, {"after": after, "last": last})
    except ForeignKeyViolation as error:
        message = "an author or a genre was deleted meanwhile: import it again"
        raise BookRefused(message) from error
    except (psycopg2.IntegrityError, psycopg2.DataError) as error:
        cursor.execute("rollback to savepoint before_lines")
        return error
    return None


def _first_refused(cursor: Cursor, last: int, error: psycopg2.Error) -> BookRefused:
    """
    Return the error that names the first line that is refused.

    The server says which constraint, but not which line. It is found by halves: of the lines in
    question the first half is added, and either that is refused, or the line is in the other half.
    """
    accepted, refused = 0, last
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        found = _insert(cursor, accepted, middle)
        if found is None:
            accepted = middle
        else:
            refused, error = middle, found
    detail = error.diag.message_detail
    reason = error.diag.message_primary or str(error)
    return BookRefused(f"line {refused}: {reason}{f': {detail}' if detail else ''}")
