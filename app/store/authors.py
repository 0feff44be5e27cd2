"""Authors, in Postgres: each has a name of its own, and one that books show cannot be deleted."""

from typing import ClassVar

from app.records import AuthorInput
from app.store.named import NamedTable
from app.store.tables import ID, STAMPS, text


class Authors(NamedTable[AuthorInput]):
    """The authors' repository."""

    name = "authors"
    noun = "author"
    filters: ClassVar = {"name": "name = %(name)s"}
    orders: ClassVar = {"id": ID, "name": text("name"), **STAMPS}
    # Another name changes these books: who changes a book has it first, and then what it shows.
    lock_first = """
        select from books
        where id in (select book_id from book_authors where author_id = any(%(ids)s::bigint[]))
        order by id for no key update;
    """
