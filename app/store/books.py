"""
Books with their authors and genres, in Postgres.

A page of books with their authors and genres is one statement, and a batch takes three round
trips. Authors and genres are given by name, and those that are new are created.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec
from msgspec import Struct
from psycopg2.errors import ForeignKeyViolation

from app.records import BookInput
from app.store.ports import Pool, Stored, Transaction
from app.store.queries import read
from app.store.tables import ID, STAMPS, Order, Table, text, with_ids
from greenline.errors import SerializationFailure

# The ids of the books of an author or genre, in their order: a page by id reads only the ids that
# it shows. Any other order needs all of them, as an array: with a subquery the planner may read
# all books and filter them.
_IDS = "select book_id from book_{0}s where {0}_id = (select id from {0}s where name = %({0})s)"
_AUTHORS, _GENRES = _IDS.format("author"), _IDS.format("genre")
# Authors and genres that are new, and then the links with both.
_LINK = [
    (f"books_link_{one}s_{n}", text.format(one))
    for n, text in enumerate(read("books/link").split(";"))
    for one in ("author", "genre")
]


class _Named(Struct):
    name: str


class _Shown(Struct):
    """The fields of a book's document that its links make."""

    authors: list[_Named]
    genres: list[_Named]


_shown = msgspec.json.Decoder(_Shown)


def _names(book: Stored) -> tuple[list[str], list[str]]:
    """Return the names of its authors and of its genres."""
    shown = _shown.decode(book.json)
    return [each.name for each in shown.authors], [each.name for each in shown.genres]


def _links(names: Mapping[int, list[str]]) -> str:
    """Return the links of books to the *names* of each id, as a JSON array."""
    links = [
        {"book_id": book_id, "name": name, "position": position}
        for book_id, each in names.items()
        for position, name in enumerate(each, 1)
    ]
    return msgspec.json.encode(links).decode()


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
        # Books without a date come last.
        "published": Order(
            "coalesce(published, 'infinity')", "coalesce(%(value)s::date, 'infinity')"
        ),
        **STAMPS,
    }

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        # Their links are written before they are read.
        self._inserting = self._named("insert", read("books/insert"))

    def _insert(self, transaction: Transaction, items: Sequence[BookInput]) -> list[Stored]:
        sent = {"items": msgspec.json.encode(items).decode()}
        # The statement returns ids in the order of the items: a sequence gives them in that order.
        ids = [int(row[0]) for row in transaction.run([self._inserting], sent)]
        return self._link(transaction, dict(zip(ids, items, strict=True)))

    def _update(
        self, transaction: Transaction, items: Mapping[int, BookInput], now: Mapping[int, Stored]
    ) -> list[Stored]:
        # The links take Postgres three times as long as the rest, and seldom change.
        if any(
            _names(now[book_id]) != (book.authors, book.genres) for book_id, book in items.items()
        ):
            return self._link(transaction, items, is_stored=True)
        return super()._update(transaction, items, now)

    def _link(
        self, transaction: Transaction, books: Mapping[int, BookInput], *, is_stored: bool = False
    ) -> list[Stored]:
        """Link *books* with their authors and genres, and return them as stored."""
        statements, values = self._statements_for(books)
        values["author_links"] = _links({key: book.authors for key, book in books.items()})
        values["genre_links"] = _links({key: book.genres for key, book in books.items()})
        if is_stored:
            values["items"] = with_ids(books)
        try:
            first = [statements.update] if is_stored else []
            rows = transaction.run([*first, *_LINK, statements.read], values)
        except ForeignKeyViolation as error:
            # An author or genre was deleted after the statement had found it. The next attempt
            # creates it again.
            raise SerializationFailure from error
        return self._in_order(books, rows)
