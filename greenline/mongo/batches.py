"""
Write several documents or none.

On a server with transactions a batch is one transaction. Elsewhere the documents are written in
order, and the written ones are undone when one is refused: other clients see parts of the batch
meanwhile, and a ``kill -9`` leaves them.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from math import inf
from time import monotonic
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference, ReplaceOne
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import ConnectionFailure, ExecutionTimeout, OperationFailure, PyMongoError

from greenline.errors import DeadlineExceeded, OutcomeUnknown, SerializationFailure
from greenline.hub import deadline
from greenline.mongo import apart
from greenline.mongo.driver import WRITE_SENT, abort, abort_of, commits_sent, has_time
from greenline.mongo.errors import translate
from greenline.mongo.retry import OUTAGE_S, Document, is_unsent, repeated
from greenline.mongo.versions import Versions

# MongoDB's labels of errors: a repetition may succeed; the commit may have been done.
TRANSIENT = "TransientTransactionError"
COMMIT_UNKNOWN = "UnknownTransactionCommitResult"

# Both texts follow any error, not only a lost connection.
UNDO_FAILED = "a part of the batch was written and could not be undone: look before you repeat it"
UNDO_INTERRUPTED = "a part of the batch was written and is being undone: look before you repeat it"

# A document as it was read, and its replacement.
Pair = tuple[Document, Document]
Work = Callable[["Database[Document]", ClientSession], None]


class _Changed(Exception):
    """Another client changed or deleted a document of the batch since it was read."""


class Batches(Versions):
    """Add the operations on several documents to a class that has ``database()``."""

    def insert_all(
        self, collection: str, documents: Sequence[Document], *, are_ours: bool = True
    ) -> None:
        """
        Insert all of *documents* or none.

        :param collection: the collection's name, str.
        :param documents: dictionaries, each with an ``_id`` that the caller has just made.
        :param are_ours: no other client inserts these ``_id``s, bool, default True. When False,
            nothing is undone without transactions: the document may be another client's.
        :raises Conflict: a document violates a unique index.
        :raises StoreDown: the server cannot be reached; nothing was stored, except, without
            transactions and with *are_ours* false, a part.
        :raises OutcomeUnknown: some may have been stored.
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
                # A secondary may not have the documents of the lost attempt yet.
                primary = found.with_options(read_preference=ReadPreference.PRIMARY)
                there = set(primary.distinct("_id", {"_id": {"$in": ids}})) if arrived else ()
                left = [document for document in documents if document["_id"] not in there]
                if left:
                    found.insert_many(left)

        try:
            repeated(attempt)
        except BaseException as error:
            # Also for an interrupt: a cut request must not leave a part of its batch.
            if are_ours and (is_sent or not is_unsent(error)):
                self._undo(lambda: self._delete_ids(collection, ids), len(ids), error)
            raise

    def swap_all(self, collection: str, pairs: Sequence[Pair]) -> bool:
        """
        Replace each old document by its new one, or replace none.

        :param collection: the collection's name, str.
        :param pairs: (old, new), the old one as it was read; the new one has another ``version``.
        :returns: False when an old document was changed or deleted since, and nothing was done.
        :raises Conflict: a new document violates a unique index.
        :raises StoreDown: the server cannot be reached; nothing was done.
        :raises OutcomeUnknown: some may have been replaced.
        """
        # One document needs no transaction, which costs a second round trip for its commit.
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
        Delete the documents with these ``_id``s.

        :param collection: the collection's name, str.
        :param ids: the ``_id``s.
        :returns: False when one was missing, and nothing was deleted. Without transactions the
            others are deleted, and the result is True.
        :raises StoreDown: the server cannot be reached; some may have been deleted.
        :raises OutcomeUnknown: they may have been deleted.
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
        is_sent = False

        def attempt(arrived: bool) -> None:
            nonlocal is_sent
            is_sent = arrived
            self._replace_left(collection, pairs, arrived)

        # Half of the time is kept for the undo.
        left_s = deadline.remaining()
        try:
            with nullcontext() if left_s is None else deadline.limit(left_s / 2):
                repeated(attempt)
        except BaseException as error:
            if is_sent or not is_unsent(error):
                self._undo(lambda: self._swap_back(collection, pairs), len(pairs), error)
            raise

    def _replace_left(self, collection: str, pairs: Sequence[Pair], arrived: bool) -> None:
        """Replace *pairs* in order; *arrived*: an earlier attempt may have reached the server."""
        left = self._left(collection, pairs) if arrived else pairs
        if not left:
            return
        with self.database(repeatable=True) as database:
            done = database[collection].bulk_write(_replacements(left))
        # A replacement that matches nothing is no error of the server's.
        if done.matched_count < len(left):
            raise _Changed

    def _left(self, collection: str, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs that are still to be replaced, after an answer was lost."""
        now, left = self._raw(collection, pairs), []
        for old, new in pairs:
            found = now.get(old["_id"])
            if found is None:
                raise _Changed
            if _is(found, new):
                continue
            version = found.get("version")
            if version not in (old.get("version"), new["version"]):
                # Another client replaced the old document, or the one of our lost attempt.
                raise OutcomeUnknown
            # Our new version number with other content: another client made the same step.
            if version != old.get("version"):
                raise _Changed
            left.append((old, new))
        return left

    def _swap_back(self, collection: str, pairs: Sequence[Pair]) -> None:
        now = self._raw(collection, pairs)
        ours = [
            (new, old)
            for old, new in reversed(pairs)
            if (found := now.get(old["_id"])) is not None and _is(found, new)
        ]
        if ours:
            with suppress(_Changed):  # a document that another client changed since is kept
                repeated(lambda arrived: self._replace_left(collection, ours, arrived))

    def _raw(self, collection: str, pairs: Sequence[Pair]) -> dict[Any, RawBSONDocument]:
        """Return the stored documents of *pairs* by ``_id``, read from the primary."""
        query = {"_id": {"$in": [old["_id"] for old, _ in pairs]}}

        def read(database: "Database[Document]") -> dict[Any, RawBSONDocument]:
            # Raw, so that the documents can be compared byte by byte.
            raw = database.codec_options.with_options(document_class=RawBSONDocument)
            primary = database[collection].with_options(raw, ReadPreference.PRIMARY)
            return {document["_id"]: document for document in primary.find(query)}

        return self.read(read)

    def _undo(self, work: Callable[[], None], items: int, error: BaseException) -> None:
        try:
            is_undone = apart.do(work, "undoing a batch", items)
        except BaseException:  # the wait was interrupted; the undo goes on in its greenlet
            raise OutcomeUnknown(UNDO_INTERRUPTED) from error
        if not is_undone:
            raise OutcomeUnknown(UNDO_FAILED) from error

    def _transact(self, work: Work) -> None:
        lost_s = inf  # the monotonic time at which the server was lost first

        def run(session: ClientSession) -> None:
            nonlocal lost_s
            commits_sent.discard(session)  # a new attempt: the commit before it was refused
            try:
                work(database, session)
            except ConnectionFailure as error:
                lost_s = min(lost_s, monotonic())
                # with_transaction would begin anew for two minutes, or until the deadline.
                if monotonic() - lost_s >= OUTAGE_S:
                    raise translate(error) from error
                raise
            # The driver would not send the commit, but report its outcome as unknown.
            if not has_time():
                raise DeadlineExceeded

        with self.database(repeatable=True) as database, database.client.start_session() as session:
            try:
                # It repeats the block after a write conflict, and the commit after a lost answer.
                session.with_transaction(run)
            except BaseException as error:
                # A transaction whose commit was never sent has written nothing.
                is_committing = session in commits_sent
                # The driver had no time for its abort either, and the server keeps an abandoned
                # transaction, with its locks, for a minute.
                if not is_committing and not has_time() and (command := abort_of(session)):
                    self._abort(command)
                if is_committing and _is_unanswered(error):
                    raise OutcomeUnknown from error
                # The driver wraps the last error when there is no time for another attempt.
                last = error.__cause__ if isinstance(error, ExecutionTimeout) else error
                if isinstance(last, OperationFailure) and last.has_error_label(TRANSIENT):
                    raise SerializationFailure from error
                if isinstance(last, PyMongoError):
                    raise translate(last) from last
                raise

    def _abort(self, command: Document) -> None:
        """Send an abort in the background, as the driver had no time for it."""

        def attempt(_: bool) -> None:
            with self.database(repeatable=True) as database:
                abort(database.client, command)

        apart.begin(lambda: repeated(attempt), "aborting a transaction")


def _is_unanswered(error: BaseException) -> bool:
    """Return whether *error* leaves the outcome of a commit unknown."""
    if isinstance(error, PyMongoError):
        return any(map(error.has_error_label, (WRITE_SENT, COMMIT_UNKNOWN)))
    # Server selection wakes up every half second only, so the interrupt may come before its error.
    return isinstance(error, deadline.Interrupt)


def _is(found: RawBSONDocument, document: Document) -> bool:
    # Byte by byte: a decoded document compares unequal where BSON cuts microseconds.
    return found.raw == bson.encode(document)


def _replacements(pairs: Sequence[Pair]) -> list[ReplaceOne[Document]]:
    return [
        ReplaceOne({"_id": old["_id"], "version": old.get("version")}, new) for old, new in pairs
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
    done = database[collection].bulk_write(_replacements(pairs), session=session)
    # The exception makes with_transaction abort; the same holds for _delete.
    if done.matched_count < len(pairs):
        raise _Changed


def _delete(
    database: "Database[Document]", session: ClientSession, collection: str, ids: Sequence[Any]
) -> None:
    done = database[collection].delete_many({"_id": {"$in": list(ids)}}, session=session)
    if done.deleted_count < len(ids):
        raise _Changed
