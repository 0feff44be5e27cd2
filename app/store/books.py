"""
Books with their authors and genres, in Postgres.

A read is one statement; its JSON is made by Postgres and passed on as text.
"""

from typing import Any

from psycopg2.extensions import cursor as Cursor

from app.errors import NotFound
from app.records import BookInput
from app.store.ports import Pool
from app.store.queries import read

_DOCUMENT = read("books/document")
_BY_ID = read("books/by_id") + _DOCUMENT
_LIST = read("books/list") + _DOCUMENT
_LINK = read("books/link") + _BY_ID
_RELINK = read("books/unlink") + _LINK
_INSERT = read("books/insert")
_UPDATE = read("books/update")
_DELETE = read("books/delete")


class Books:
    """The books' repository. Documents are JSON text."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def get(self, book_id: int) -> str:
        """
        Return one book.

        Raises:
            NotFound: there is none of this id.
        """
        rows = self._pool.fetch("book_by_id", _BY_ID, {"id": book_id})
        if not rows:
            raise _missing(book_id)
        return str(rows[0][0])

    def list(self, limit: int) -> str:
        """Return a JSON array of the first *limit* books by id."""
        rows = self._pool.fetch("book_list", _LIST, {"limit": limit})
        return f"[{','.join(row[0] for row in rows)}]"

    def create(self, book: BookInput) -> tuple[int, str]:
        """Store a book; return its id and itself."""
        with self._pool.connection(reset=False) as conn, conn.cursor() as cursor:
            cursor.execute(_INSERT, {"title": book.title, "published": book.published})
            book_id = int(_first(cursor))
            cursor.execute(_LINK, {"id": book_id, "authors": book.authors, "genres": book.genres})
            return book_id, str(_first(cursor, book_id))

    def replace(self, book_id: int, book: BookInput) -> str:
        """
        Put *book* in the place of the one with this id.

        Raises:
            NotFound: there is none of this id.
        """
        values = {"id": book_id, "title": book.title, "published": book.published}
        with self._pool.connection(reset=False) as conn, conn.cursor() as cursor:
            cursor.execute(_UPDATE, values)
            _first(cursor, book_id)
            cursor.execute(_RELINK, {"id": book_id, "authors": book.authors, "genres": book.genres})
            return str(_first(cursor, book_id))

    def delete(self, book_id: int) -> None:
        """
        Delete one book; its authors and genres stay.

        Raises:
            NotFound: there is none of this id.
        """
        with self._pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
            cursor.execute(_DELETE, {"id": book_id})
            _first(cursor, book_id)


def _first(cursor: Cursor, book_id: int | None = None) -> Any:
    """Return the first row's only column; no row means that there is no such book."""
    row = cursor.fetchone()
    if row is None:
        raise _missing(book_id)
    return row[0]


def _missing(book_id: int | None) -> NotFound:
    return NotFound(f"there is no book {book_id}")
