"""
Writes that happen once, in MongoDB: each document has the key that it was created with.

1. ``once`` holds the hash of the key with the item's place in its batch, uniquely indexed, and what
   was sent. The first answer is made again from that and from id and created_at, also when the
   item was changed since; one that was deleted since is created again.
2. Ids of a batch follow from any of them: what a killed process left undone is done by the same
   request, sent again. As nobody can tell that from one that is still at work, it is only done
   ``IN_PROGRESS_S`` later. Several may do it at once, and each counts on what the others stored:
   so none of them undoes anything.
3. A key is free again after a day.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

from app.errors import KeyInProgress, KeyReused
from app.store import documents
from app.store.indexes import Index
from app.store.ports import Document, Mongo, Once
from greenline.errors import Conflict

ONCE = "once"
INDEX = Index(("once.key",), unique=True, sparse=True)
KEPT = timedelta(days=1)
IN_PROGRESS_S = 60.0
MAX_CLAIMS = 3

_HASH_LENGTH = 40
_INDEX_LENGTH = 4  # hexadecimal


class _Key:
    """The documents of one key in one collection."""

    def __init__(self, mongo: Mongo, collection: str, key: str) -> None:
        self._mongo = mongo
        self._collection = collection
        self._hash = sha256(key.encode()).hexdigest()[:_HASH_LENGTH]
        self._all = {"once.key": {"$gte": self.at(0), "$lte": self.at(16**_INDEX_LENGTH - 1)}}

    def at(self, index: int) -> str:
        return f"{self._hash}{index:0{_INDEX_LENGTH}x}"

    def look(self) -> tuple[dict[int, Document], bool]:
        """Return what is there, by its place in the batch, and whether older ones were freed."""
        fields = [ONCE, "created_at"]
        there = self._mongo.read(
            lambda database: list(database[self._collection].find(self._all, fields))
        )
        oldest = documents.now() - KEPT
        found = {
            int(document[ONCE]["key"][_HASH_LENGTH:], 16): document
            for document in there
            if document["created_at"] >= oldest
        }
        has_old = len(found) < len(there)
        if has_old:
            self._free({**self._all, "created_at": {"$lt": oldest}})
        return found, has_old

    def _free(self, which: Mapping[str, Any]) -> None:
        with self._mongo.database(repeatable=True) as database:
            database[self._collection].update_many(which, {"$unset": {ONCE: ""}})


def create_once(
    mongo: Mongo, collection: str, contents: Sequence[Document], once: Once
) -> list[Document]:
    """
    Store *contents*, all or none, unless that was done before; return the documents as they were.

    Raises:
        Conflict: one contradicts what is stored.
        KeyReused: the key came with another request before.
        KeyInProgress: the first request may still be at work.
    """
    key = _Key(mongo, collection, once.key)
    found: dict[int, Document] = {}
    if len(contents) > 1:  # one that is there is told by its insert
        found, _ = key.look()
    for _ in range(MAX_CLAIMS):
        made = _as_first(contents, once, found)
        for index, document in enumerate(made):
            document[ONCE] = {"key": key.at(index), "request": once.request}
        missing = [document for index, document in enumerate(made) if index not in found]
        try:
            if len(missing) == 1:
                mongo.insert(collection, missing[0])
            elif missing:
                mongo.insert_all(collection, missing, are_ours=not found)
            return made
        except Conflict:
            seen, was_freed = key.look()
            if seen.keys() == found.keys() and not was_freed:
                raise
            found = seen
    raise KeyInProgress


def _as_first(
    contents: Sequence[Document], once: Once, found: Mapping[int, Document]
) -> list[Document]:
    """Return *contents* as documents: as those that were *found*, or new ones."""
    if not found:
        return documents.made(contents, documents.new_ids(len(contents)), documents.now())
    if any(document[ONCE]["request"] != once.request for document in found.values()):
        raise KeyReused
    first = next(iter(found.values()))
    at = first["created_at"]
    is_whole = len(found) == len(contents)
    if not is_whole and documents.now() - at < timedelta(seconds=IN_PROGRESS_S):
        raise KeyInProgress
    ids = [
        found[index]["_id"] if index in found else documents.sibling(first["_id"], index)
        for index in range(len(contents))
    ]
    return documents.made(contents, ids, at)
