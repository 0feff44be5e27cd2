"""
A resource in one collection of MongoDB: what all such repositories do. The twin of ``Table``.

1. A document has an item's fields as they are shown, then created_at, updated_at and ``version``,
   and ``once`` (:mod:`app.store.once_in_documents`), which is not shown. Its id is an ObjectId, in
   hex outside.
2. An item is changed by reading it, and by putting another in its place while it has that version;
   again when someone else was faster.
3. A batch is a transaction where the server has them. Elsewhere (a mongod that is no replica set)
   all of it is checked first, then written in order, and what was written is undone when the
   server refuses one. Who reads meanwhile sees a part, and a process that is killed in between
   leaves it. With an Idempotency-Key the same request, sent again, completes it; without one it has
   to be looked for.
4. A page's place is (order, ``_id``), never a skip, but where a page is asked for by number.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from bson import ObjectId
from pymongo import ASCENDING, DESCENDING
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from app.errors import NotFound, PreconditionFailed
from app.store import documents
from app.store.indexes import Index
from app.store.once_in_documents import ONCE, create_once
from app.store.ports import Change, Document, I, Listing, Mongo, Once, Page, Position, Stored
from greenline.errors import OutcomeUnknown, SerializationFailure

T = TypeVar("T")

# How often another one may be faster, in changing one item, before that is told.
MAX_SWAPS = 30
SWAP_PAUSE_S = 0.005  # at most, as the following ones
MAX_SWAP_PAUSE_S = 0.2

OWN_FIELDS = frozenset({"_id", "created_at", "updated_at", "version", ONCE})

# The driver has a kind of its own for numbers beyond 32 bits.
_encoder = msgspec.json.Encoder(enc_hook=int)


class Collection(Generic[I]):
    """The repository of one resource."""

    name: ClassVar[str]
    noun: ClassVar[str]
    indexes: ClassVar[Sequence[Index]]
    # What no two items have in common: an order by it needs no second field.
    unique: ClassVar[frozenset[str]] = frozenset({"id"})

    def __init__(self, mongo: Mongo) -> None:
        self._mongo = mongo

    def stored(self, item: I) -> Document:
        """Return the fields of *item* as they are kept."""
        fields: Document = msgspec.to_builtins(item)
        return fields

    def shown(self, document: Document) -> Document:
        """Return the fields of *document* as they are answered, ready for JSON."""
        return {name: value for name, value in document.items() if name not in OWN_FIELDS}

    def where(self, filters: Mapping[str, Any]) -> Document:
        """Return the query for what has all these values."""
        return dict(filters)

    def get(self, item_id: str) -> Stored:
        key = {"_id": ObjectId(item_id)}
        found = self._mongo.read(lambda database: database[self.name].find_one(key))
        if found is None:
            raise self._missing([item_id])
        return self._stored(found)

    def get_by(self, fields: Mapping[str, Any]) -> Stored:
        """
        Return the item that has these values, which no two items have.

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

    def page(self, listing: Listing) -> Page:
        where, position = self.where(listing.filters), listing.position
        backwards = position is not None and position.before
        direction = DESCENDING if listing.descending != backwards else ASCENDING
        by = [("_id" if listing.order == "id" else listing.order, direction)]
        if listing.order not in self.unique:
            by.append(("_id", direction))
        query = where
        if position is not None:
            query = both(where, self._beyond(position, listing.order, direction))
        more = {"sort": by, "skip": (listing.page - 1) * listing.limit, "limit": listing.limit + 1}
        found = self._mongo.read(lambda database: list(database[self.name].find(query, **more)))
        items = [self._stored(document) for document in found[: listing.limit]]
        if backwards:
            items.reverse()
        total = None
        if listing.total:
            total = self._mongo.read(lambda database: database[self.name].count_documents(where))
        return Page(items, len(found) > listing.limit, total)

    def create(self, items: Sequence[I], once: Once | None = None) -> list[Stored]:
        contents = [self.stored(item) for item in items]
        if once is not None:
            made = create_once(self._mongo, self.name, contents, once)
        else:
            made = documents.made(contents, documents.new_ids(len(contents)), documents.now())
            if len(made) == 1:
                # A client that asks again is given another _id.
                self._mongo.insert(self.name, made[0], may_come_again=False)
            else:
                self._mongo.insert_all(self.name, made)
        return [self._stored(document) for document in made]

    def change(self, changes: Sequence[Change[I]]) -> list[Stored]:
        return _until_first(lambda: self._changed(changes))

    def delete(self, ids: Sequence[str], versions: frozenset[int] | None = None) -> None:
        if versions is not None:
            [item_id] = ids  # a batch has no versions to delete
            _until_first(lambda: self._delete_version(item_id, versions))
        elif len(ids) == 1:
            if not self._mongo.delete(self.name, ObjectId(ids[0])):
                raise self._missing(ids)
        else:
            _until_first(lambda: self._delete_all(ids))

    def delete_where(self, filters: Mapping[str, Any]) -> int:
        with self._mongo.database() as database:
            return database[self.name].delete_many(self.where(filters)).deleted_count

    def _changed(self, changes: Sequence[Change[I]]) -> list[Stored]:
        now = self._read_all([str(change.id) for change in changes])
        for change in changes:
            self._require(now[str(change.id)], change.versions)
        pairs = [(old := now[str(change.id)], self._edited(old, change)) for change in changes]
        try:
            is_done = self._mongo.swap_all(self.name, pairs)
        except OutcomeUnknown:
            # To put the same there again changes nothing, but where a version was asked for.
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
        """Return what is there of *ids*."""
        query = {"_id": {"$in": [ObjectId(item_id) for item_id in ids]}}
        found = self._mongo.read(lambda database: list(database[self.name].find(query)))
        return {str(document["_id"]): document for document in found}

    def _read_all(self, ids: Sequence[str]) -> dict[str, Document]:
        found = self._read(ids)
        if len(found) < len(ids):
            raise self._missing([item_id for item_id in ids if item_id not in found])
        return found

    def _beyond(self, position: Position, order: str, direction: int) -> Document:
        """Return the query for what comes behind *position* in this direction."""
        sign = "$gt" if direction == ASCENDING else "$lt"
        by_id = {"_id": {sign: ObjectId(str(position.id))}}
        if order == "id":
            return by_id
        if order in self.unique:
            return {order: {sign: position.value}}
        # The first condition says where to begin in an index; the others leave out equals.
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
    """Return the query for what both find: without ``$and``, for which some servers scan."""
    if one.keys() & other.keys():
        return {"$and": [one, other]}
    return {**one, **other}


def _version(document: Document) -> int:
    """Return its version: what was stored before there were any has the first."""
    return int(document.get("version", 1))


def _until_first(work: Callable[[], T]) -> T:
    """Return what *work* returns, done again when another one was faster."""
    retrying = Retrying(
        retry=retry_if_exception_type(SerializationFailure),
        wait=wait_random_exponential(multiplier=SWAP_PAUSE_S, max=MAX_SWAP_PAUSE_S),
        stop=stop_after_attempt(MAX_SWAPS),
        reraise=True,
    )
    return retrying(work)
