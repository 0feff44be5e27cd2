"""
Export and import all books with their authors and genres by COPY, as lines of JSON.

COPY is impossible with psycopg2's wait callback, so these functions need the connection of a
command; a worker cannot call them.
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
# JSON contains these two characters only in escaped form, so COPY finds nothing to quote or to
# split, and passes each line unchanged.
_FORMAT = "with (format csv, quote e'\\x01', delimiter e'\\x02', encoding 'utf8')"
_EXPORT = f"copy ({read('books/export')}) to stdout {_FORMAT}"
_SENT = read("books/sent")
_SEND = f"copy sent_books (line, book) from stdin {_FORMAT}"
_IMPORT = read("books/import")
_ANALYZE = "analyze books, authors, genres, book_authors, book_genres"


class BookRefused(Exception):
    """A line is no book, or the database refuses it; the message has the number of the line."""


def export_books(conn: Connection, stream: BinaryIO) -> int:
    """
    Write all books, in the order of their ids.

    :param conn: a connection of a command.
    :param stream: receives a line of JSON for each book.
    :returns: the number of books.
    """
    # One statement sees one snapshot, so the file is consistent while clients write.
    with conn.cursor() as cursor:
        cursor.copy_expert(_EXPORT, stream)
        return cursor.rowcount


def import_books(conn: Connection, lines: Iterable[tuple[int, bytes]]) -> int:
    """
    Add books: all of them or none.

    :param conn: a connection of a command.
    :param lines: pairs of a line's number and the line.
    :returns: the number of books.
    :raises BookRefused: names the first line that is no book, or that a constraint refuses.
    """
    with conn, conn.cursor() as cursor:
        cursor.execute(_SENT)
        rows = _BookRows(lines)
        try:
            cursor.copy_expert(_SEND, rows, COPY_BUFFER_BYTES)  # type: ignore[arg-type]  # it only reads
        except psycopg2.Error:
            if rows.error is not None:
                # psycopg2's error has only the text of the exception that read() raised.
                raise rows.error from None
            raise
        # A temporary table has no statistics until it is analyzed: autovacuum never sees it.
        cursor.execute("analyze sent_books")
        refused = _insert(cursor, 0, rows.last)
        if refused is not None:
            raise _first_refused(cursor, rows.last, refused)
        # Without this, pages of books would be planned as if the tables were empty, until
        # autovacuum has run.
        cursor.execute(_ANALYZE)
        return rows.count


class _BookRows:
    """The file that COPY reads: for each book its line's number, the delimiter and its JSON."""

    def __init__(self, lines: Iterable[tuple[int, bytes]]) -> None:
        self.count = self.last = 0
        self.error: Exception | None = None
        self._rows = self._checked(lines)
        self._rest = b""

    def read(self, size: int = COPY_BUFFER_BYTES, /) -> bytes:
        """Return at most *size* bytes, none at the end."""
        try:
            while len(self._rest) < size and (row := next(self._rows, None)):
                self._rest += row
        except Exception as error:
            # Kept for import_books(): psycopg2 replaces it by an error of its own.
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
            # Encoded again: one line, whatever white space the file's own line has.
            self.count, self.last = self.count + 1, number
            yield b"%d\x02%b\n" % (number, msgspec.json.encode(book))


def _insert(cursor: Cursor, after: int, last: int) -> psycopg2.Error | None:
    """Add the books of some lines; return the error that refuses them, None after success."""
    # Without the savepoint the error would end the whole transaction.
    cursor.execute("savepoint before_lines")
    try:
        cursor.execute(_IMPORT, {"after": after, "last": last})
    except ForeignKeyViolation as error:
        # Not a fault of any line: the statement itself adds the missing authors and genres.
        message = "an author or a genre was deleted meanwhile: import it again"
        raise BookRefused(message) from error
    except (psycopg2.IntegrityError, psycopg2.DataError) as error:
        cursor.execute("rollback to savepoint before_lines")
        return error
    return None


def _first_refused(cursor: Cursor, last: int, error: psycopg2.Error) -> BookRefused:
    """
    Return an error that names the first line that is refused.

    The server's error names a constraint and no line, so the line is found by bisection.
    """
    # Lines up to accepted are in the transaction; the first refused one follows, up to refused.
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
