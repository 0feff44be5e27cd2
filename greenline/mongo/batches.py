"""
Write several documents or none: in a transaction, or as well as it can be done without.

1. Without transactions documents are written in order, and what was written is undone when one is
   refused; what others changed since stays. Who looks meanwhile sees parts, and a kill -9 leaves
   them. When undoing fails, as the server is away, the outcome is unknown, and told so.
2. A transaction is done again by the driver when another one was in its way; its commit is
   repeated too. When that is not answered in the end, the outcome is unknown.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pymongo import ReadPreference, ReplaceOne
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError

from greenline.errors import OutcomeUnknown, SerializationFailure
from greenline.mongo import apart
from greenline.mongo.driver import WRITE_SENT
from greenline.mongo.retry import Document, is_stored, is_unsent, repeated
from greenline.mongo.versions import Versions

# MongoDB's labels of errors: the same again may succeed, and: it may have been committed.
TRANSIENT = "TransientTransactionError"
COMMIT_UNKNOWN = "UnknownTransactionCommitResult"

# A document as it was read, and what is to be in its place.
Pair = tuple[Document, Document]
Work = Callable[["Database[Document]", ClientSession], None]


class _Changed(Exception):
    """Another one changed a document of the batch since it was read."""


class Batches(Versions):
    """The operations on several documents, for a class that lends a database."""

    def insert_all(self, collection: str, documents: Sequence[Document]) -> None:
        """
        Insert *documents*, whose ``_id``s were just made, or none.

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
            if is_sent or not is_unsent(error):
                self._undo(lambda: self.delete_all(collection, ids), error)
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

    def delete_all(self, collection: str, ids: Sequence[Any]) -> None:
        """
        Delete what has these ``_id``s; what is gone already is no error.

        Raises:
            StoreDown: the server cannot be reached; some may have been deleted.
        """

        def attempt(_: bool) -> None:
            with self.database(repeatable=True) as database:
                database[collection].delete_many({"_id": {"$in": list(ids)}})

        repeated(attempt)

    def _swap_in_order(self, collection: str, pairs: Sequence[Pair]) -> None:
        begun: list[Pair] = []
        try:
            for pair in pairs:
                begun.append(pair)
                if not self.swap(collection, *pair):
                    raise _Changed
        except BaseException as error:
            if len(begun) > 1 or not is_unsent(error):
                self._undo(lambda: self._swap_back(collection, begun), error)
            raise

    def _swap_back(self, collection: str, begun: Sequence[Pair]) -> None:
        for old, new in reversed(begun):
            if self.read(partial(_holds, collection, new)):
                self.swap(collection, new, old)

    def _undo(self, work: Callable[[], None], error: BaseException) -> None:
        if not apart.do(work, "undoing a batch"):
            raise OutcomeUnknown from error

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


def _holds(collection: str, document: Document, database: "Database[Document]") -> bool:
    return is_stored(database[collection], document)


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
    writes = [
        ReplaceOne({"_id": old["_id"], "version": old.get("version")}, new) for old, new in pairs
    ]
    done = database[collection].bulk_write(writes, session=session)
    if done.matched_count < len(pairs):
        raise _Changed
