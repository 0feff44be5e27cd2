"""
The interfaces between the layers: repositories for the API, and database access for repositories.

A repository behaves the same on each database. One call writes everything or nothing, with the
exception that :mod:`app.store.collections` describes for a MongoDB without transactions.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct
from psycopg2.extensions import connection as Connection
from pymongo.database import Database

Document = dict[str, Any]
Named = tuple[str, str]  # the name of a statement, and its text with %(value)s in it
T = TypeVar("T")
# An item as a client sends it: a Struct of app.records.
I = TypeVar("I")  # noqa: E741


# A Struct is created three times as fast as a dataclass, and a page has up to a hundred.
class Stored(Struct, frozen=True, gc=False):
    """
    A stored item.

    :param id: int or str.
    :param version: int.
    :param json: the complete document, bytes, which is sent unchanged.
    """

    id: int | str
    version: int
    json: bytes


class Page(Struct, frozen=True):
    """
    A part of a list.

    :param items: the complete documents in the order of the list, bytes each.
    :param more: other items follow in the direction in which it was read, bool.
    :param total: items in the whole list, int; None if it was not requested. Default None.
    """

    items: tuple[bytes, ...]
    more: bool
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """
    A position in a list, after or before an item.

    :param value: the item's value in the order of the list.
    :param id: the item's id.
    :param before: the page ends before the item instead of beginning after it. Default False.
    """

    value: Any
    id: int | str
    before: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """
    A request for a page of a list.

    :param order: the field to order by.
    :param descending: the direction, bool.
    :param limit: items in the page, int.
    :param filters: values that fields must be equal to. Default none.
    :param page: number of the page, int, from 1. Default 1.
    :param position: where the page begins or ends; None for the start. Default None.
    :param total: whether to count the whole list, bool. Default False.
    """

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
    A change of one item.

    :param id: the item's id.
    :param edit: returns the new input, made from the current document; it may be called again.
    :param versions: the item must have one of them; None allows any. Default None.
    """

    id: int | str
    edit: Callable[[Document], I]
    versions: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Idempotency:
    """
    The idempotency key of a request.

    :param key: the key, with its owner and the kind of request.
    :param request: hash of the request's content.
    """

    key: str
    request: bytes


class Repository(Protocol[I]):
    """The items of one resource, in any database."""

    @property
    def name(self) -> str:
        """The name of the resource, plural."""
        ...

    def get(self, item_id: Any) -> Stored:
        """
        Return one item.

        :raises NotFound: there is none with this id.
        """
        ...

    def get_many(self, ids: Sequence[Any]) -> list[Stored]:
        """Return the items that exist, in the order of *ids*."""
        ...

    def page(self, listing: Listing) -> Page:
        """Return a page of the list."""
        ...

    def kept(self, listing: Listing, name: str, make: Callable[[], T]) -> T:
        """
        Return what *make* makes of a page, or has made of it before.

        :param listing: of the page.
        :param name: what is made has this name, and nothing else of the resource.
        :param make: reads the page by :meth:`page`.
        """
        ...

    def create(self, items: Sequence[I], idempotency: Idempotency | None = None) -> list[Stored]:
        """
        Store all items or none.

        :param items: the input.
        :param idempotency: return the answer of the first call with this key. Default None.
        :returns: the items as stored, in their order.
        :raises Conflict: one contradicts a stored item.
        :raises IdempotencyKeyReused: the key came with another request before.
        :raises IdempotencyKeyInProgress: the first request with the key is not finished.
        """
        ...

    def change(self, changes: "Sequence[Change[I]]") -> list[Stored]:
        """
        Make all *changes*, each of a different item, or none.

        :raises NotFound: items are missing; the error has their ids.
        :raises PreconditionFailed: one has another version.
        :raises Conflict: one contradicts a stored item.
        """
        ...

    def delete(self, ids: Sequence[Any], versions: frozenset[int] | None = None) -> None:
        """
        Delete all items or none.

        :param ids: of the items.
        :param versions: the item must have one of them; only for a single id. Default None: any.
        :raises NotFound: items are missing; the error has their ids.
        :raises PreconditionFailed: one has another version.
        :raises Conflict: another item refers to one of them.
        """
        ...

    def delete_where(self, filters: Mapping[str, Any]) -> int:
        """Delete the items that have all these values; return their number."""
        ...


class NamedRepository(Protocol):
    """Items with unique names."""

    def id_of(self, name: str) -> Any:
        """
        Return the id of the item called *name*.

        :raises NotFound: there is none.
        """
        ...

    def get_named(self, names: Sequence[str]) -> dict[str, Stored]:
        """Return the items that exist, by name, in the order of *names*."""
        ...

    def delete_named(self, names: Sequence[str]) -> None:
        """
        Delete all items or none.

        :raises NotFound: items are missing; the error has their names.
        :raises Conflict: another item refers to one of them.
        """
        ...


class NamedItems(Repository[I], NamedRepository, Protocol[I]):
    """The items of a resource with unique names."""


class Cache(Protocol):
    """Keep values by key, as :class:`greenline.cache.Cache` does."""

    def get(self, key: str) -> Any:
        """Return the value of *key* if there is a fresh one, None otherwise."""
        ...

    def get_or_load(
        self,
        key: str,
        load: Callable[[], T],
        *,
        tags: Collection[str] = (),
        note: Callable[[str], object] = bool,
    ) -> T:
        """Return the value of *key*, from the cache or from *load*; *note* gets which."""
        ...

    def invalidate(self, key: str | None = None, *, tag: str | None = None) -> None:
        """Forget the value of *key*, and all values with *tag*."""
        ...


class Pool(Protocol):
    """Lend connections to Postgres; errors are those of :mod:`greenline.errors`."""

    def connection(
        self, *, autocommit: bool = False, reset: bool = True
    ) -> AbstractContextManager[Connection]:
        """
        Lend a connection for a ``with`` block, which is one transaction.

        :param autocommit: each statement is a transaction of its own. Default False.
        :param reset: reset the session afterwards, which takes a round trip. Default True; False
            is for a block that leaves no setting, lock or temporary table in the session.
        """
        ...

    def fetch(self, name: str, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """
        Run one statement that only reads.

        :param name: under which it is prepared.
        :param text: the statement.
        :param values: its parameters.
        :returns: the rows.
        """
        ...

    def transact(self, work: "Callable[[Transaction], T]", *, reset: bool = True) -> T:
        """
        Return the result of *work*, run in a transaction.

        :param work: may be called again, after a deadlock for example.
        :param reset: as in :meth:`connection`. Default True.
        """
        ...


class Transaction(Protocol):
    """Run the statements of a transaction of Postgres."""

    def execute(self, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """
        Run a statement that is planned for its values.

        :param text: the statement.
        :param values: its parameters.
        :returns: its rows.
        """
        ...

    def run(self, named: Sequence[Named], values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """
        Run statements in one round trip.

        :param named: the statements, each with the name under which it is prepared.
        :param values: the parameters of all.
        :returns: the rows of the last one.
        """
        ...


class DocumentStore(Protocol):
    """
    Lend the MongoDB database; errors are those of :mod:`greenline.errors`.

    All methods but ``database()`` repeat their operation for a few seconds after a lost connection,
    so it may be done twice. ``$inc``, ``$push`` and deletes by a filter must not be done so.
    """

    def database(self, *, repeatable: bool = False) -> "AbstractContextManager[Database[Document]]":
        """
        Lend the database for a ``with`` block, which is not repeated.

        :param repeatable: the block may be done twice, so a lost answer is reported as an outage.
            Default False.
        """
        ...

    def read(self, work: "Callable[[Database[Document]], T]") -> T:
        """Return the result of *work*, which only reads and returns no cursor."""
        ...

    def insert(self, collection: str, document: Document, *, may_come_again: bool = True) -> None:
        """
        Insert one document.

        :param collection: the collection's name.
        :param document: with an ``_id`` that the caller has just made.
        :param may_come_again: the caller may insert the same document again. Default True.
        """
        ...

    def insert_all(
        self, collection: str, documents: Sequence[Document], *, are_ours: bool = True
    ) -> None:
        """
        Insert all documents or none.

        :param collection: the collection's name.
        :param documents: with ``_id``s that the caller has just made.
        :param are_ours: no other client inserts these ``_id``s, so an incomplete batch is undone.
            Default True.
        """
        ...

    def swap_all(self, collection: str, pairs: Sequence[tuple[Document, Document]]) -> bool:
        """
        Replace each old document by its new one, or replace none.

        :param collection: the collection's name.
        :param pairs: (old, new), the old one as it was read.
        :returns: False if an old document was changed or deleted since.
        """
        ...

    def remove(self, collection: str, old: Document) -> bool:
        """
        Delete a document.

        :param collection: the collection's name.
        :param old: the document as it was read.
        :returns: False if it was changed or deleted since.
        """
        ...

    def delete(self, collection: str, document_id: Any) -> bool:
        """
        Delete one document.

        :param collection: the collection's name.
        :param document_id: its ``_id``.
        :returns: whether it existed.
        """
        ...

    def delete_all(self, collection: str, ids: Sequence[Any]) -> bool:
        """
        Delete documents.

        :param collection: the collection's name.
        :param ids: their ``_id``s.
        :returns: False if one was missing and nothing was deleted. Without transactions the others
            are deleted.
        """
        ...
