"""
Write several documents or none.

On a server with transactions a batch is one transaction; elsewhere :mod:`greenline.mongo.emulated`
writes it.
"""

from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import Any

from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import ConnectionFailure, ExecutionTimeout, OperationFailure, PyMongoError

from greenline.errors import DeadlineExceeded, OutcomeUnknown, SerializationFailure
from greenline.hub import deadline
from greenline.mongo import apart
from greenline.mongo.driver import WRITE_SENT, abort, abort_of, commits_sent, has_time
from greenline.mongo.emulated import EmulatedBatches
from greenline.mongo.errors import translate
from greenline.mongo.retry import OUTAGE_S, Document, repeated
from greenline.mongo.versions import Changed, Pair, replacements

# MongoDB's labels of errors: a repetition may succeed; the commit may have been done.
TRANSIENT = "TransientTransactionError"
COMMIT_UNKNOWN = "UnknownTransactionCommitResult"

Work = Callable[["Database[Document]", ClientSession], None]


class Batches(EmulatedBatches):
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
        else:
            self._insert_in_order(collection, documents, are_ours)

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
        except Changed:
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
        except Changed:
            return False
        return True

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
    done = database[collection].bulk_write(replacements(pairs), session=session)
    # The exception makes with_transaction abort; the same holds for _delete.
    if done.matched_count < len(pairs):
        raise Changed


def _delete(
    database: "Database[Document]", session: ClientSession, collection: str, ids: Sequence[Any]
) -> None:
    done = database[collection].delete_many({"_id": {"$in": list(ids)}}, session=session)
    if done.deleted_count < len(ids):
        raise Changed
