"""
Write several documents or none: in a transaction, or as well as it can be done without.

1. Without transactions documents are written in order, and what was written is undone when one is
   refused; what others changed since stays. Who looks meanwhile sees parts, and a kill -9 leaves
   them. Half of the time is kept for undoing. When that fails, as the server is away, or is
   interrupted, the outcome is unknown, and told so.
2. A transaction is done again by the driver when another one was in its way; its commit is
   repeated too. When that is not answered in the end, the outcome is unknown.
3. FerretDB 1 keeps one of its 50 connections to SQLite for each replacement of a command: what is
   replaced goes in chunks, and one batch at a time (:meth:`Versions.exclusive`), or it hangs.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference, ReplaceOne
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError

from greenline import deadline
from greenline.errors import OutcomeUnknown, SerializationFailure
from greenline.mongo import apart
from greenline.mongo.driver import WRITE_SENT
from greenline.mongo.retry import Document, is_unsent, repeated
from greenline.mongo.versions import Versions

# MongoDB's labels of errors: the same again may succeed, and: it may have been committed.
TRANSIENT = "TransientTransactionError"
COMMIT_UNKNOWN = "UnknownTransactionCommitResult"

# An undo is needed after any error: the connection need not have been lost.
UNDO_FAILED = "a part of the batch was written and could not be undone: look before you repeat it"
UNDO_INTERRUPTED = "a part of the batch was written and is being undone: look before you repeat it"

# How many documents a command replaces.
CHUNK = 10

# A document as it was read, and what is to be in its place.
Pair = tuple[Document, Document]
Work = Callable[["Database[Document]", ClientSession], None]


class _Changed(Exception):
    """Another one changed a document of the batch since it was read."""


class Batches(Versions):
    """The operations on several documents, for a class that lends a database."""

    def insert_all(
        self, collection: str, documents: Sequence[Document], *, are_ours: bool = True
    ) -> None:
        """
        Insert *documents*, whose ``_id``s were just made, or none.

        When others may insert the same, *are_ours* is false: without transactions nothing is
        undone then, as it may be theirs.

        Raises:
            Conflict: one contradicts a unique index.
            StoreDown: the server cannot be reached; none was stored.
            OutcomeUnknown: some may have been stored.
        """
        if self.capabilities().has_transactions:
            self._transact(
                lambda database, session: _insert(database, session, collection, documents)
            )
            return
        ids = [document["_id"] for document in documents]
        is_sent = False

        def attempt(arrived: bool) -> None:
            nonlocal is_sent
            is_sent = arrived
            with self.database(repeatable=True) as database:
                found = database[collection]
                primary = found.with_options(read_preference=ReadPreference.PRIMARY)
                there = set(primary.distinct("_id", {"_id": {"$in": ids}})) if arrived else ()
                left = [document for document in documents if document["_id"] not in there]
                if left:
                    found.insert_many(left)

        try:
            repeated(attempt)
        except BaseException as error:
            if are_ours and (is_sent or not is_unsent(error)):
                self._undo(lambda: self._delete_ids(collection, ids), len(ids), error)
            raise

    def swap_all(self, collection: str, pairs: Sequence[Pair]) -> bool:
        """
        Put all that is new in the places of the old, in an ``exclusive()`` block, or nothing.

        False when one of the old ones is gone, and nothing was done.

        Raises:
            Conflict: one contradicts a unique index.
            StoreDown: the server cannot be reached; nothing was done.
            OutcomeUnknown: some may have been replaced.
        """
        if len(pairs) == 1:
            return self.swap(collection, *pairs[0])
        try:
            if self.capabilities().has_transactions:
                self._transact(
                    lambda database, session: _replace(database, session, collection, pairs)
                )
            else:
                self._swap_in_order(collection, pairs)
        except _Changed:
            return False
        return True

    def delete_all(self, collection: str, ids: Sequence[Any]) -> bool:
        """
        Delete what has these ``_id``s.

        False when one is gone, and nothing was deleted; without transactions that is no error.

        Raises:
            StoreDown: the server cannot be reached; some may have been deleted.
            OutcomeUnknown: they may have been deleted.
        """
        try:
            if self.capabilities().has_transactions:
                self._transact(
                    lambda database, session: _delete(database, session, collection, ids)
                )
            else:
                self._delete_ids(collection, ids)
        except _Changed:
            return False
        return True

    def _delete_ids(self, collection: str, ids: Sequence[Any]) -> None:
        def attempt(_: bool) -> None:
            with self.database(repeatable=True) as database:
                database[collection].delete_many({"_id": {"$in": list(ids)}})

        repeated(attempt)

    def _swap_in_order(self, collection: str, pairs: Sequence[Pair]) -> None:
        if not self.capabilities().can_swap:
            self._require_old(collection, pairs)
        begun: list[Pair] = []
        left_s = deadline.remaining()
        try:
            with nullcontext() if left_s is None else deadline.limit(left_s / 2):
                for chunk in _chunks(pairs):
                    self._swap_chunk(collection, chunk, begun)
        except BaseException as error:
            if begun:
                self._undo(lambda: self._swap_back(collection, begun), len(begun), error)
            raise

    def _require_old(self, collection: str, pairs: Sequence[Pair]) -> None:
        """Raise _Changed unless all have their old versions."""
        now = self._raw(collection, pairs)
        for old, _ in pairs:
            found = now.get(old["_id"])
            if found is None or found.get("version") != old.get("version"):
                raise _Changed

    def _swap_chunk(self, collection: str, pairs: Sequence[Pair], begun: list[Pair]) -> None:
        """Replace *pairs*, and add them to *begun* when they were sent, whatever became of it."""
        can_swap = self.capabilities().can_swap
        is_sent = False

        def attempt(arrived: bool) -> None:
            nonlocal is_sent
            is_sent = arrived
            left = self._left(collection, pairs) if arrived else pairs
            if not left:
                return
            with self.database(repeatable=True) as database:
                done = database[collection].bulk_write(_replacements(left, can_swap))
            if done.matched_count < len(left):
                raise _Changed

        try:
            repeated(attempt)
            is_sent = True
        except BaseException as error:
            is_sent = is_sent or not is_unsent(error)
            raise
        finally:
            if is_sent:
                begun += pairs

    def _left(self, collection: str, pairs: Sequence[Pair]) -> list[Pair]:
        """Return which are still to be replaced, after an answer was lost."""
        now, left = self._raw(collection, pairs), []
        for old, new in pairs:
            found = now.get(old["_id"])
            if found is None:
                raise _Changed
            if _is(found, new):
                continue
            version = found.get("version")
            if version not in (old.get("version"), new["version"]):
                raise OutcomeUnknown  # ours may have come before theirs
            if version != old.get("version"):
                raise _Changed
            left.append((old, new))
        return left

    def _swap_back(self, collection: str, begun: Sequence[Pair]) -> None:
        now = self._raw(collection, begun)
        ours = [
            (new, old)
            for old, new in reversed(begun)
            if (found := now.get(old["_id"])) is not None and _is(found, new)
        ]
        for chunk in _chunks(ours):
            try:
                self._swap_chunk(collection, chunk, [])
            except _Changed:  # what others changed since stays
                continue

    def _raw(self, collection: str, pairs: Sequence[Pair]) -> dict[Any, RawBSONDocument]:
        """Return what is there of *pairs* now, by its ``_id``: the primary is asked."""
        query = {"_id": {"$in": [old["_id"] for old, _ in pairs]}}

        def read(database: "Database[Document]") -> dict[Any, RawBSONDocument]:
            raw = database.codec_options.with_options(document_class=RawBSONDocument)
            primary = database[collection].with_options(raw, ReadPreference.PRIMARY)
            return {document["_id"]: document for document in primary.find(query)}

        return self.read(read)

    def _undo(self, work: Callable[[], None], items: int, error: BaseException) -> None:
        try:
            is_undone = apart.do(work, "undoing a batch", items)
        except BaseException:  # interrupted: it goes on, and nobody waits for its end
            raise OutcomeUnknown(UNDO_INTERRUPTED) from error
        if not is_undone:
            raise OutcomeUnknown(UNDO_FAILED) from error

    def _transact(self, work: Work) -> None:
        is_done = False

        def run(session: ClientSession) -> None:
            nonlocal is_done
            is_done = False
            work(database, session)
            is_done = True

        with self.database(repeatable=True) as database, database.client.start_session() as session:
            try:
                session.with_transaction(run)
            except PyMongoError as error:
                # Before the commit nothing is written, whatever was lost.
                if is_done and any(map(error.has_error_label, (WRITE_SENT, COMMIT_UNKNOWN))):
                    raise OutcomeUnknown from error
                if isinstance(error, OperationFailure) and error.has_error_label(TRANSIENT):
                    raise SerializationFailure from error
                raise


def _chunks(pairs: Sequence[Pair]) -> list[Sequence[Pair]]:
    return [pairs[first : first + CHUNK] for first in range(0, len(pairs), CHUNK)]


def _is(found: RawBSONDocument, document: Document) -> bool:
    return found.raw == bson.encode(document)


def _replacements(pairs: Sequence[Pair], can_swap: bool) -> list[ReplaceOne[Document]]:
    """Return the writes; where a filter by version keeps nobody apart, it has none."""
    return [
        ReplaceOne(
            {"_id": old["_id"], **({"version": old.get("version")} if can_swap else {})}, new
        )
        for old, new in pairs
    ]


def _insert(
    database: "Database[Document]",
    session: ClientSession,
    collection: str,
    documents: Sequence[Document],
) -> None:
    database[collection].insert_many(documents, session=session)


def _replace(
    database: "Database[Document]", session: ClientSession, collection: str, pairs: Sequence[Pair]
) -> None:
    done = database[collection].bulk_write(_replacements(pairs, can_swap=True), session=session)
    if done.matched_count < len(pairs):
        raise _Changed


def _delete(
    database: "Database[Document]", session: ClientSession, collection: str, ids: Sequence[Any]
) -> None:
    done = database[collection].delete_many({"_id": {"$in": list(ids)}}, session=session)
    if done.deleted_count < len(ids):
        raise _Changed
