"""
What the layers hand each other: repositories to the API, and to them what lends a database.

1. A repository answers the same, whichever database it is on.
2. All that one call writes is written, or nothing is; what a MongoDB without transactions leaves
   of that is said in :mod:`app.store.collections`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct
from psycopg2.extensions import connection as Connection
from pymongo.database import Database

Document = dict[str, Any]
T = TypeVar("T")
# What a client sends of an item: a Struct of app.records.
I = TypeVar("I")  # noqa: E741


# A Struct, because a page has a hundred of them: they are made three times as fast.
class Stored(Struct, frozen=True, gc=False):
    """An item as it is kept: ``json`` is its document, to be passed on as it is."""

    id: int | str
    version: int
    json: bytes


@dataclass(frozen=True, slots=True)
class Page:
    """Some items of a list, in its order; ``more`` says that others follow in its direction."""

    items: list[Stored]
    more: bool
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a list: behind (or before) the item of this id, which had this value in order."""

    value: Any
    id: int | str
    before: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """What is asked of a list: filters by field, and where in its order to begin."""

    order: str
    descending: bool
    limit: int
    filters: Mapping[str, Any] = field(default_factory=dict)
    page: int = 1
    position: Position | None = None
    total: bool = False


@dataclass(frozen=True, slots=True)
class Change(Generic[I]):
    """
    What an item is to become: *edit* makes that of its document, as it is now.

    With *versions* the item must have one of them.
    """

    id: int | str
    edit: Callable[[Document], I]
    versions: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Once:
    """A write that happens once, however often it is sent: whose *key*, and what was sent."""

    key: str
    request: bytes


class Repository(Protocol[I]):
    """One resource's items, whichever database they are in."""

    def get(self, item_id: Any) -> Stored:
        """
        Return one item.

        Raises:
            NotFound: there is none of this id.
        """
        ...

    def get_many(self, ids: Sequence[Any]) -> list[Stored]:
        """Return the items that are there, in the order of *ids*."""
        ...

    def page(self, listing: Listing) -> Page:
        """Return a page of the list."""
        ...

    def create(self, items: Sequence[I], once: Once | None = None) -> list[Stored]:
        """
        Store all *items*, or none; with *once*, what the first call answered.

        Raises:
            Conflict: one contradicts what is stored.
            KeyReused, KeyInProgress: the key of *once* has another request, or one that runs.
        """
        ...

    def change(self, changes: "Sequence[Change[I]]") -> list[Stored]:
        """
        Make all *changes*, each of another item, or none.

        Raises:
            NotFound: names the ids that are not there.
            PreconditionFailed: one has another version.
            Conflict: one contradicts what is stored.
        """
        ...

    def delete(self, ids: Sequence[Any], versions: frozenset[int] | None = None) -> None:
        """
        Delete all of these, or none.

        Raises:
            NotFound: names the ids that are not there.
            PreconditionFailed: one has another version.
            Conflict: something refers to one of them.
        """
        ...

    def delete_where(self, filters: Mapping[str, Any]) -> int:
        """Delete what has all these values; return how many."""
        ...


class NamedRepository(Protocol):
    """Items each of which has a name of its own."""

    def id_of(self, name: str) -> Any:
        """
        Return the id of the item of this name.

        :raises NotFound: there is none.
        """
        ...

    def get_named(self, names: Sequence[str]) -> dict[str, Stored]:
        """Return the items that are there by name, in the order of *names*."""
        ...

    def delete_named(self, names: Sequence[str]) -> None:
        """
        Delete all of these, or none.

        :raises NotFound: names those that are not there.
        :raises Conflict: something refers to one of them.
        """
        ...


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

    def repeat(self, work: Callable[[Connection], T], *, reset: bool = True) -> T:
        """Return what *work* returns, in a transaction that is done again after a deadlock."""
        ...


class Mongo(Protocol):
    """
    Lends the MongoDB database; errors come out as those of :mod:`greenline.errors`.

    All but ``database()`` is done again when the server was lost on the way, for a few seconds at
    most: it may happen twice. ``$inc``, ``$push`` and deletes by a filter may not.
    """

    def database(self, *, repeatable: bool = False) -> "AbstractContextManager[Database[Document]]":
        """
        Lent for the length of the block, in which nothing is repeated.

        *repeatable* says that all of it may be done twice: a lost answer is then an outage.
        """
        ...

    def read(self, work: "Callable[[Database[Document]], T]") -> T:
        """Return what *work* reads; it returns no cursor."""
        ...

    def insert(self, collection: str, document: Document, *, may_come_again: bool = True) -> None:
        """Insert *document*, whose ``_id`` was just made; its caller may insert it again."""
        ...

    def insert_all(
        self, collection: str, documents: Sequence[Document], *, are_ours: bool = True
    ) -> None:
        """Insert all of these, whose ``_id``s were just made, or none; undone if *are_ours*."""
        ...

    def swap_all(self, collection: str, pairs: Sequence[tuple[Document, Document]]) -> bool:
        """Put all that is new in the places of the old; False when one of those has changed."""
        ...

    def remove(self, collection: str, old: Document) -> bool:
        """Delete *old*; return False when it has changed."""
        ...

    def delete(self, collection: str, document_id: Any) -> bool:
        """Delete one document; return whether there was one."""
        ...

    def delete_all(self, collection: str, ids: Sequence[Any]) -> bool:
        """Delete what has these ids; False when one is gone, where all or none are deleted."""
        ...
