"""
Idempotent creation in MongoDB: each document has the key that it was created with, for a day.

``once`` holds the hash of the key with the item's position in its batch, in a unique index, and a
hash of the request. The first answer is made again from the repeated request and the stored
``_id`` and ``created_at``, even if the item was changed since. A deleted item is created again. A
batch that a killed process left incomplete is completed by the same request.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

from app.errors import IdempotencyKeyInProgress, IdempotencyKeyReused
from app.store import documents
from app.store.indexes import Index
from app.store.ports import Document, DocumentStore, Idempotency
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

    def __init__(self, mongo: DocumentStore, collection: str, key: str) -> None:
        self._mongo = mongo
        self._collection = collection
        self._hash = sha256(key.encode()).hexdigest()[:_HASH_LENGTH]
        self._all = {"once.key": {"$gte": self.at(0), "$lte": self.at(16**_INDEX_LENGTH - 1)}}

    def at(self, index: int) -> str:
        return f"{self._hash}{index:0{_INDEX_LENGTH}x}"

    def read(self) -> tuple[dict[int, Document], bool]:
        """Return the key's documents by position, and whether expired ones were released."""
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
        # A key is valid for a day; then its documents give it up, in place of a background task.
        has_old = len(found) < len(there)
        if has_old:
            self._free({**self._all, "created_at": {"$lt": oldest}})
        return found, has_old

    def _free(self, which: Mapping[str, Any]) -> None:
        with self._mongo.database(repeatable=True) as database:
            database[self._collection].update_many(which, {"$unset": {ONCE: ""}})


def create_idempotently(
    mongo: DocumentStore, collection: str, contents: Sequence[Document], idempotency: Idempotency
) -> list[Document]:
    """
    Store documents, all or none, unless the same request did so before.

    :param mongo: lends the database.
    :param collection: the collection's name.
    :param contents: the items' fields.
    :param idempotency: the key, and a hash of the request.
    :returns: the documents as first stored.
    :raises Conflict: one contradicts a stored document.
    :raises IdempotencyKeyReused: the key came with another request before.
    :raises IdempotencyKeyInProgress: the first request may not be finished.
    """
    key = _Key(mongo, collection, idempotency.key)
    found: dict[int, Document] = {}
    # A single insert needs no read before: the unique index refuses it if the key was used.
    if len(contents) > 1:
        found, _ = key.read()
    for _ in range(MAX_CLAIMS):
        made = _as_first(contents, idempotency, found)
        for index, document in enumerate(made):
            document[ONCE] = {"key": key.at(index), "request": idempotency.request}
        missing = [document for index, document in enumerate(made) if index not in found]
        try:
            if len(missing) == 1:
                mongo.insert(collection, missing[0])
            elif missing:
                # After a lost attempt other requests may complete the same batch, and each relies
                # on the documents of the others: then none may be undone.
                mongo.insert_all(collection, missing, are_ours=not found)
            return made
        except Conflict:
            seen, was_freed = key.read()
            # Unchanged documents of this key: the conflict is with some other unique index.
            if seen.keys() == found.keys() and not was_freed:
                raise
            found = seen
    raise IdempotencyKeyInProgress


def _as_first(
    contents: Sequence[Document], idempotency: Idempotency, found: Mapping[int, Document]
) -> list[Document]:
    """Return *contents* as documents, with the ids and times of those that were *found*."""
    if not found:
        return documents.made(contents, documents.new_ids(len(contents)), documents.now())
    if any(document[ONCE]["request"] != idempotency.request for document in found.values()):
        raise IdempotencyKeyReused
    first = next(iter(found.values()))
    at = first["created_at"]
    # An incomplete batch may be that of a killed process or of one that still writes. They cannot
    # be distinguished, so it is completed only after IN_PROGRESS_S.
    is_whole = len(found) == len(contents)
    if not is_whole and documents.now() - at < timedelta(seconds=IN_PROGRESS_S):
        raise IdempotencyKeyInProgress
    ids = [
        found[index]["_id"] if index in found else documents.sibling(first["_id"], index)
        for index in range(len(contents))
    ]
    return documents.made(contents, ids, at)
