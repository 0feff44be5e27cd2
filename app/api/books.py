"""``/books``: books with their authors and genres, which are given and filtered by name."""

from datetime import date, datetime

from msgspec import Struct

from app.api.resource import Resource
from app.records import Book, BookInput, Id, Name, Title
from app.store.ports import Document, Repository


class BookFilters(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields by which books can be filtered."""

    title: Title | None = None
    published: date | None = None
    author: Name | None = None
    genre: Name | None = None


def resource(books: Repository[BookInput]) -> Resource[BookInput]:
    """Describe the resource; *books* is its repository."""
    return Resource(
        name="books",
        noun="book",
        repository=books,
        input=BookInput,
        item=Book,
        filters=BookFilters,
        orders={
            "id": int,
            "title": str,
            "published": date | None,
            "created_at": datetime,
            "updated_at": datetime,
        },
        limit=20,
        id_type=Id,
        converter="id",
        as_input=_as_input,
    )


def _as_input(book: Document) -> Document:
    """Return *book* as a client would send it, which a merge patch applies to."""
    return {
        "title": book["title"],
        "published": book["published"],
        "authors": [author["name"] for author in book["authors"]],
        "genres": [genre["name"] for genre in book["genres"]],
    }
