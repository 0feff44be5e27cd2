"""
Books with their authors and genres, in Postgres.

1. A page with all that its books show is one statement, a batch a handful: three round trips.
2. Authors and genres come by name; who is new is made. Two books that make the same one wait for
   each other, and both have it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec
from psycopg2.errors import ForeignKeyViolation
from psycopg2.extensions import cursor as Cursor

from app.records import BookInput
from app.store.ports import Stored
from app.store.queries import read
from app.store.tables import ID, STAMPS, Order, Table, text, with_ids
from greenline.errors import SerializationFailure

# The ids of what has a name, in their order: a page by id reads no more of them than it shows. Any
# other order needs them all; as an array, lest the planner reads all books and then looks which.
_IDS = "select book_id from book_{0}s where {0}_id = (select id from {0}s where name = %({0})s)"
_AUTHORS, _GENRES = _IDS.format("author"), _IDS.format("genre")
_LINK = read("books/link")


class Books(Table[BookInput]):
    """The books' repository."""

    name = "books"
    noun = "book"
    filters: ClassVar = {
        "title": "title = %(title)s",
        "published": "coalesce(published, 'infinity') = %(published)s::date",
        "author": f"id = any(array({_AUTHORS}))",
        "genre": f"id = any(array({_GENRES}))",
    }
    filters_by_id: ClassVar = {"author": f"id in ({_AUTHORS})", "genre": f"id in ({_GENRES})"}
    orders: ClassVar = {
        "id": ID,
        "title": text("title"),
        # Books of an unknown day come last.
        "published": Order(
            "coalesce(published, 'infinity')", "coalesce(%(value)s::date, 'infinity')"
        ),
        **STAMPS,
    }

    def _insert(self, cursor: Cursor, items: Sequence[BookInput]) -> list[Stored]:
        cursor.execute(self._inserting, {"items": msgspec.json.encode(items).decode()})
        ids = [int(row[0]) for row in cursor.fetchall()]
        return self._link(cursor, dict(zip(ids, items, strict=True)))

    def _update(self, cursor: Cursor, items: Mapping[int, BookInput]) -> list[Stored]:
        return self._link(cursor, items, self._updating)

    def _link(
        self, cursor: Cursor, books: Mapping[int, BookInput], first: str = ""
    ) -> list[Stored]:
        """Do what comes *first*, link *books* with what they name; return them as stored."""
        values = {
            "items": with_ids(books),
            "ids": list(books),
            "authors": list({name for book in books.values() for name in book.authors}),
            "genres": list({name for book in books.values() for name in book.genres}),
        }
        try:
            cursor.execute(f"{first} {_LINK} {self._by_ids}", values)
        except ForeignKeyViolation as error:
            # One that was there was deleted meanwhile: the next attempt makes it anew.
            raise SerializationFailure from error
        return self._in_order(books, cursor.fetchall())
