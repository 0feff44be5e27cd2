"""
Write several documents or none: in a transaction, or as well as it can be done without.

1. Without transactions documents are written in order, and what was written is undone when one is
   refused; what others changed since stays. Who looks meanwhile sees parts, and a kill -9 leaves
   them. Half of the time is kept for undoing. When that fails, as the server is away, or is
   interrupted, the outcome is unknown, and told so.
2. A transaction is done again by the driver when another one was in its way, or the server was
   lost for up to ``OUTAGE_S``; its commit is repeated too. When that is not answered in the end,
   the outcome is unknown.
3. When the deadline passes before the commit is sent, the driver has no time left for an abort
   either. It is sent in the background: else the server would keep the transaction for a minute.
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

# MongoDB's labels of errors: the same again may succeed, and: it may have been committed.
TRANSIENT = "TransientTransactionError"
COMMIT_UNKNOWN = "UnknownTransactionCommitResult"

# An undo is needed after any error: the connection need not have been lost.
UNDO_FAILED = "a part of the batch was written and could not be undone: look before you repeat it"
UNDO_INTERRUPTED = "a part of the batch was written and is being undone: look before you repeat it"

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
        Put all that is new in the places of the old, or nothing.

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
        is_sent = False

        def attempt(arrived: bool) -> None:
            nonlocal is_sent
            is_sent = arrived
            self._replace_left(collection, pairs, arrived)

        left_s = deadline.remaining()
        try:
            with nullcontext() if left_s is None else deadline.limit(left_s / 2):
                repeated(attempt)
        except BaseException as error:
            if is_sent or not is_unsent(error):
                self._undo(lambda: self._swap_back(collection, pairs), len(pairs), error)
            raise

    def _replace_left(self, collection: str, pairs: Sequence[Pair], arrived: bool) -> None:
        """Replace *pairs* in order; an attempt before this one may have *arrived*."""
        left = self._left(collection, pairs) if arrived else pairs
        if not left:
            return
        with self.database(repeatable=True) as database:
            done = database[collection].bulk_write(_replacements(left))
        if done.matched_count < len(left):
            raise _Changed

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

    def _swap_back(self, collection: str, pairs: Sequence[Pair]) -> None:
        now = self._raw(collection, pairs)
        ours = [
            (new, old)
            for old, new in reversed(pairs)
            if (found := now.get(old["_id"])) is not None and _is(found, new)
        ]
        if ours:
            with suppress(_Changed):  # what others changed since stays
                repeated(lambda arrived: self._replace_left(collection, ours, arrived))

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
        lost_s = inf  # when the server was lost first

        def run(session: ClientSession) -> None:
            nonlocal lost_s
            commits_sent.discard(session)  # a commit before this was refused
            try:
                work(database, session)
            except ConnectionFailure as error:
                lost_s = min(lost_s, monotonic())
                # The driver would begin anew for two minutes, or until the deadline.
                if monotonic() - lost_s >= OUTAGE_S:
                    raise translate(error) from error
                raise
            if not has_time():  # a commit would not be sent, and be of unknown outcome
                raise DeadlineExceeded

        with self.database(repeatable=True) as database, database.client.start_session() as session:
            try:
                session.with_transaction(run)
            except BaseException as error:
                # Before the commit nothing is written, whatever was lost.
                is_committing = session in commits_sent
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
        """Begin an abort for which the driver had no time; the request does not wait for it."""

        def attempt(_: bool) -> None:
            with self.database(repeatable=True) as database:
                abort(database.client, command)

        apart.begin(lambda: repeated(attempt), "aborting a transaction")


def _is_unanswered(error: BaseException) -> bool:
    """Return whether *error* leaves open what became of a commit."""
    if isinstance(error, PyMongoError):
        return any(map(error.has_error_label, (WRITE_SENT, COMMIT_UNKNOWN)))
    # The driver looks for a server every half second, also past the deadline.
    return isinstance(error, deadline.Interrupt)


def _is(found: RawBSONDocument, document: Document) -> bool:
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
    if done.matched_count < len(pairs):
        raise _Changed


def _delete(
    database: "Database[Document]", session: ClientSession, collection: str, ids: Sequence[Any]
) -> None:
    done = database[collection].delete_many({"_id": {"$in": list(ids)}}, session=session)
    if done.deleted_count < len(ids):
        raise _Changed
