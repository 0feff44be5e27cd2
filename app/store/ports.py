"""What the repositories are handed: something that lends a connection or a database."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from psycopg2.extensions import connection as Connection
from pymongo.database import Database

Document = dict[str, Any]
T = TypeVar("T")


class Pool(Protocol):
    """Lends Postgres connections; errors come out as those of :mod:`greenline.errors`."""

    def connection(
        self, *, autocommit: bool = False, reset: bool = True
    ) -> AbstractContextManager[Connection]:
        """
        One transaction for the length of the block; with *autocommit* each statement is one.

        Without *reset* the block leaves nothing in the session: no setting, lock or temp table.
        """
        ...

    def fetch(self, name: str, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run one statement that only reads, prepared under its name."""
        ...


class Mongo(Protocol):
    """
    Lends the MongoDB database; errors come out as those of :mod:`greenline.errors`.

    All but ``database()`` is done again when the server was lost on the way, for a few seconds at
    most: it may happen twice. ``$inc``, ``$push`` and deletes by a filter may not.
    """

    def database(self) -> "AbstractContextManager[Database[Document]]":
        """Lent for the length of the block, in which nothing is repeated."""
        ...

    def read(self, work: "Callable[[Database[Document]], T]") -> T:
        """Return what *work* reads; it returns no cursor."""
        ...

    def insert(self, collection: str, document: Document) -> None:
        """Insert *document*, whose ``_id`` was just made."""
        ...

    def update(
        self, collection: str, document_id: Any, change: Mapping[str, Any]
    ) -> Document | None:
        """Change one document to what is to be; return it as it is now, None without one."""
        ...

    def delete(self, collection: str, document_id: Any) -> bool:
        """Delete one document; return whether there was one."""
        ...
