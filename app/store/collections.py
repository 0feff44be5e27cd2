"""
The repository of a resource in one collection of MongoDB, as ``Table`` is for Postgres.

A document has the item's fields, ``created_at``, ``updated_at``, ``version``, and ``once``
(:mod:`app.store.idempotency_in_documents`), which is not shown.

A batch is a transaction if the server has transactions. Otherwise (a mongod without a replica set)
it is checked first, written in order, and undone if the server refuses a document: other clients
see a part of it meanwhile, and a killed process leaves that part. The same request with the same
Idempotency-Key completes it; without a key it has to be found by hand.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from bson import ObjectId
from pymongo import ASCENDING, DESCENDING
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from app.errors import NotFound, PreconditionFailed
from app.store import documents
from app.store.idempotency_in_documents import ONCE, create_idempotently
from app.store.indexes import Index
from app.store.ports import (
    Change,
    Document,
    DocumentStore,
    I,
    Idempotency,
    Listing,
    Page,
    Position,
    Stored,
)
from greenline.errors import OutcomeUnknown, SerializationFailure

T = TypeVar("T")

# Attempts to change an item that other clients change at the same time.
MAX_SWAPS = 30
SWAP_PAUSE_S = 0.005  # an upper limit, as each pause is random
MAX_SWAP_PAUSE_S = 0.2

OWN_FIELDS = frozenset({"_id", "created_at", "updated_at", "version", ONCE})

# The driver returns numbers beyond 32 bits as bson.Int64, which msgspec does not know.
_encoder = msgspec.json.Encoder(enc_hook=int)


class Collection(Generic[I]):
    """
    The repository of one resource.

    :param mongo: lends the database.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    indexes: ClassVar[Sequence[Index]]
    # Fields that are unique: an order by one of them needs no second field.
    unique: ClassVar[frozenset[str]] = frozenset({"id"})

    def __init__(self, mongo: DocumentStore) -> None:
        self._mongo = mongo

    def stored(self, item: I) -> Document:
        """Return the fields of *item* as they are stored."""
        fields: Document = msgspec.to_builtins(item)
        return fields

    def shown(self, document: Document) -> Document:
        """Return the fields of *document* as they are shown, ready for JSON."""
        return {name: value for name, value in document.items() if name not in OWN_FIELDS}

    def where(self, filters: Mapping[str, Any]) -> Document:
        """Return the query for documents that have all these values."""
        return dict(filters)

    def get(self, item_id: str) -> Stored:
        key = {"_id": ObjectId(item_id)}
        found = self._mongo.read(lambda database: database[self.name].find_one(key))
        if found is None:
            raise self._missing([item_id])
        return self._stored(found)

    def get_by(self, fields: Mapping[str, Any]) -> Stored:
        """
        Return the item that has these values.

        :param fields: value by name; a unique index covers them.
        :raises NotFound: there is none.
        """
        where = self.where(fields)
        found = self._mongo.read(lambda database: database[self.name].find_one(where))
        if found is None:
            values = ", ".join(f"{name} {value}" for name, value in fields.items())
            raise NotFound(f"there is no {self.noun} of {values}")
        return self._stored(found)

    def get_many(self, ids: Sequence[str]) -> list[Stored]:
        found = self._read(ids)
        return [self._stored(found[item_id]) for item_id in ids if item_id in found]

    def kept(self, listing: Listing, name: str, make: Callable[[], T]) -> T:
        return make()  # app.store.cached keeps it

    def page(self, listing: Listing) -> Page:
        where, position = self.where(listing.filters), listing.position
        backwards = position is not None and position.before
        direction = DESCENDING if listing.descending != backwards else ASCENDING
        by = [("_id" if listing.order == "id" else listing.order, direction)]
        # A position is (order, _id): equal values of the order differ by the _id.
        if listing.order not in self.unique:
            by.append(("_id", direction))
        query = where
        if position is not None:
            query = both(where, self._beyond(position, listing.order, direction))
        # One document more than the page shows whether others follow. Skipping reads all documents
        # before the page, so only a page that is requested by its number does it.
        more = {"sort": by, "skip": (listing.page - 1) * listing.limit, "limit": listing.limit + 1}
        found = self._mongo.read(lambda database: list(database[self.name].find(query, **more)))
        items = [self._stored(document).json for document in found[: listing.limit]]
        if backwards:
            items.reverse()
        total = None
        if listing.total:
            total = self._mongo.read(lambda database: database[self.name].count_documents(where))
        return Page(tuple(items), len(found) > listing.limit, total)

    def create(self, items: Sequence[I], idempotency: Idempotency | None = None) -> list[Stored]:
        contents = [self.stored(item) for item in items]
        if idempotency is not None:
            made = create_idempotently(self._mongo, self.name, contents, idempotency)
        else:
            made = documents.made(contents, documents.new_ids(len(contents)), documents.now())
            if len(made) == 1:
                # Without a key a repeated request has another _id: it would store a second item.
                self._mongo.insert(self.name, made[0], may_come_again=False)
            else:
                self._mongo.insert_all(self.name, made)
        return [self._stored(document) for document in made]

    def change(self, changes: Sequence[Change[I]]) -> list[Stored]:
        return _until_first(lambda: self._changed(changes))

    def delete(self, ids: Sequence[str], versions: frozenset[int] | None = None) -> None:
        if versions is not None:
            [item_id] = ids  # a batch delete takes no versions
            _until_first(lambda: self._delete_version(item_id, versions))
        elif len(ids) == 1:
            # One delete by _id, without a read before.
            if not self._mongo.delete(self.name, ObjectId(ids[0])):
                raise self._missing(ids)
        else:
            _until_first(lambda: self._delete_all(ids))

    def delete_where(self, filters: Mapping[str, Any]) -> int:
        # Not repeatable: a second attempt would also delete documents that came meanwhile, and
        # would return a wrong count.
        with self._mongo.database() as database:
            return database[self.name].delete_many(self.where(filters)).deleted_count

    def _changed(self, changes: Sequence[Change[I]]) -> list[Stored]:
        # Optimistic: read, edit, and replace each document only if it still has its version.
        # SerializationFailure makes _until_first() begin again.
        now = self._read_all([str(change.id) for change in changes])
        for change in changes:
            self._require(now[str(change.id)], change.versions)
        pairs = [(old := now[str(change.id)], self._edited(old, change)) for change in changes]
        try:
            is_done = self._mongo.swap_all(self.name, pairs)
        except OutcomeUnknown:
            # One change without a required version can be applied again to the current document.
            # With one, a second attempt would find our own new version and report a conflict.
            if len(changes) > 1 or changes[0].versions is not None:
                raise
            is_done = False
        if not is_done:
            raise SerializationFailure
        return [self._stored(new) for _, new in pairs]

    def _edited(self, old: Document, change: Change[I]) -> Document:
        item = change.edit(msgspec.json.decode(self._stored(old).json))
        [new] = documents.made([self.stored(item)], [old["_id"]], documents.now())
        new |= {"created_at": old["created_at"], "version": _version(old) + 1}
        # The idempotency key belongs to the creation and survives each change.
        if ONCE in old:
            new[ONCE] = old[ONCE]
        return new

    def _delete_all(self, ids: Sequence[str]) -> None:
        self._read_all(ids)
        if not self._mongo.delete_all(self.name, [ObjectId(item_id) for item_id in ids]):
            raise SerializationFailure

    def _delete_version(self, item_id: str, versions: frozenset[int]) -> None:
        now = self._read_all([item_id])[item_id]
        self._require(now, versions)
        if not self._mongo.remove(self.name, now):
            raise SerializationFailure

    def _read(self, ids: Sequence[str]) -> dict[str, Document]:
        """Return the documents that exist, by id."""
        query = {"_id": {"$in": [ObjectId(item_id) for item_id in ids]}}
        found = self._mongo.read(lambda database: list(database[self.name].find(query)))
        return {str(document["_id"]): document for document in found}

    def _read_all(self, ids: Sequence[str]) -> dict[str, Document]:
        found = self._read(ids)
        if len(found) < len(ids):
            raise self._missing([item_id for item_id in ids if item_id not in found])
        return found

    def _beyond(self, position: Position, order: str, direction: int) -> Document:
        """Return the query for documents after *position* in this direction."""
        sign = "$gt" if direction == ASCENDING else "$lt"
        by_id = {"_id": {sign: ObjectId(str(position.id))}}
        if order == "id":
            return by_id
        if order in self.unique:
            return {order: {sign: position.value}}
        # The first condition gives the index scan its start, which the server does not derive from
        # $or; the second excludes documents of the same value up to the position.
        return {
            order: {f"{sign}e": position.value},
            "$or": [{order: {sign: position.value}}, {order: position.value, **by_id}],
        }

    def _stored(self, document: Document) -> Stored:
        item_id, version = str(document["_id"]), _version(document)
        shown = {
            "id": item_id,
            **self.shown(document),
            "created_at": documents.rfc3339(document["created_at"]),
            "updated_at": documents.rfc3339(document["updated_at"]),
            "version": version,
        }
        return Stored(item_id, version, _encoder.encode(shown))

    def _require(self, document: Document, versions: frozenset[int] | None) -> None:
        if versions is not None and (version := _version(document)) not in versions:
            raise PreconditionFailed(f"{self.noun} {document['_id']} has version {version}")

    def _missing(self, ids: Sequence[str]) -> NotFound:
        return NotFound(f"there is no {self.noun} {', '.join(ids)}", ids)


def both(one: Document, other: Document) -> Document:
    """
    Return the query for documents that match two queries.

    :param one: a query.
    :param other: a query.
    """
    # Merged if possible: for $and some servers scan the collection.
    if one.keys() & other.keys():
        return {"$and": [one, other]}
    return {**one, **other}


def _version(document: Document) -> int:
    """Return the version of *document*; documents from before there were versions have 1."""
    return int(document.get("version", 1))


def _until_first(work: Callable[[], T]) -> T:
    """Return the result of *work*, repeated while other clients change the same documents."""
    # Pauses are random: two clients that collide must not do so again at the same moment. The
    # library's back-off, because the repositories import no hub.
    retrying = Retrying(
        retry=retry_if_exception_type(SerializationFailure),
        wait=wait_random_exponential(multiplier=SWAP_PAUSE_S, max=MAX_SWAP_PAUSE_S),
        stop=stop_after_attempt(MAX_SWAPS),
        reraise=True,
    )
    return retrying(work)
