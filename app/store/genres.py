"""Genres in Postgres. Names are unique. One that a book refers to cannot be deleted."""

from typing import ClassVar

from app.records import GenreInput
from app.store.named import NamedTable
from app.store.tables import ID, STAMPS, text


class Genres(NamedTable[GenreInput]):
    """The genres' repository."""

    name = "genres"
    noun = "genre"
    filters: ClassVar = {"name": "name = %(name)s"}
    orders: ClassVar = {"id": ID, "name": text("name"), **STAMPS}
    # A new name changes the documents of these books. They are locked first because a change of a
    # book locks the book before its genres: the opposite order would deadlock.
    lock_first = """
        select from books
        where id in (select book_id from book_genres where genre_id = any(%(ids)s::bigint[]))
        order by id for no key update
    """
