"""
Repeat an operation after a lost connection, if doing it twice has the effect of doing it once.

Such operations are reads, an insert with an ``_id`` made by the caller, and a replacement, a
``$set`` or a delete of one document by its ``_id``. Other operations (``$inc``, ``$push``) belong
in a ``database()`` block, which is never repeated.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any, Protocol, TypeVar

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference, ReturnDocument
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import AutoReconnect, DuplicateKeyError, ServerSelectionTimeoutError
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from greenline.errors import OutcomeUnknown, PoolClosed, PoolTimeout, StoreDown
from greenline.hub import deadline
from greenline.mongo.errors import CURSOR_CODES

Document = dict[str, Any]
T = TypeVar("T")

# No attempt begins later than this after the first one, however much time the request has left.
OUTAGE_S = 5.0
MAX_ATTEMPTS = 6
FIRST_PAUSE_S = 0.05  # an upper limit, as each pause is random
LONGEST_PAUSE_S = 1.0

# Applied twice they have the effect of one application.
REPEATABLE_OPERATORS = frozenset({"$set", "$unset", "$min", "$max"})


class Lender(Protocol):
    """Lend the database, and translate errors into those of :mod:`greenline.errors`."""

    def database(
        self, *, repeatable: bool = False
    ) -> "AbstractContextManager[Database[Document]]": ...


class Repeating:
    """Add the repeated operations to a class that has ``database()``."""

    def read(self: Lender, work: "Callable[[Database[Document]], T]") -> T:
        """
        Call *work* with the database, and return its result.

        :param work: a callable that only reads; it reads its cursors to the end.
        :raises StoreDown: the server cannot be reached, also after a few attempts.
        """

        def attempt(_: bool) -> T:
            with self.database(repeatable=True) as database:
                return work(database)

        return repeated(attempt)

    def insert(
        self: Lender, collection: str, document: Document, *, may_come_again: bool = True
    ) -> None:
        """
        Insert one document.

        :param collection: the collection's name, str.
        :param document: the document, with an ``_id`` that the caller has just made.
        :param may_come_again: the caller may insert this very document again, bool, default True.
        :raises Conflict: it violates a unique index.
        :raises StoreDown: the server cannot be reached; with *may_come_again* the document may have
            been stored.
        :raises OutcomeUnknown: without *may_come_again*: it may have been stored.
        :raises ValueError: *document* has no ``_id``.
        """
        if "_id" not in document:
            raise ValueError("without an _id of ours, a second attempt would insert it twice")

        def attempt(arrived: bool) -> None:
            with self.database(repeatable=True) as database:
                try:
                    database[collection].insert_one(document)
                except DuplicateKeyError:
                    # Ours, if an earlier attempt stored it and its answer was lost. Compared by
                    # content, as the error may also come from another unique index.
                    if not arrived or not is_stored(database[collection], document):
                        raise

        repeated(attempt, may_come_again=may_come_again)

    def update(
        self: Lender, collection: str, document_id: Any, change: Mapping[str, Any]
    ) -> Document | None:
        """
        Change one document.

        A repeated change overwrites another client's change between the attempts, as a change that
        came a moment later would.

        :param collection: the collection's name, str.
        :param document_id: the document's ``_id``.
        :param change: a whole new document, or operators of ``REPEATABLE_OPERATORS``.
        :returns: the changed document, None if there is no such ``_id``.
        :raises Conflict: it violates a unique index.
        :raises StoreDown: the server cannot be reached; the change may have been made.
        :raises ValueError: *change* has an operator that is not repeatable.
        """
        operators = {name for name in change if name.startswith("$")}
        if not operators <= REPEATABLE_OPERATORS:
            raise ValueError(f"not repeatable: {sorted(operators - REPEATABLE_OPERATORS)}")
        key = {"_id": document_id}

        def attempt(_: bool) -> Document | None:
            with self.database(repeatable=True) as database:
                found = database[collection]
                after = ReturnDocument.AFTER
                if operators:
                    return found.find_one_and_update(key, change, return_document=after)
                return found.find_one_and_replace(key, change, return_document=after)

        return repeated(attempt)

    def delete(self: Lender, collection: str, document_id: Any) -> bool:
        """
        Delete one document.

        :param collection: the collection's name, str.
        :param document_id: the document's ``_id``.
        :returns: whether it was deleted; also True if it is missing after a lost answer.
        :raises StoreDown: the server cannot be reached; the document may have been deleted.
        """

        def attempt(arrived: bool) -> bool:
            with self.database(repeatable=True) as database:
                gone = database[collection].delete_one({"_id": document_id}).deleted_count
            # After a lost answer it is unknown whether the document existed before. The caller
            # asked for its absence, which is certain.
            return bool(gone) or arrived

        return repeated(attempt)


def is_stored(collection: "Collection[Document]", document: Document) -> bool:
    """
    Return whether a document is stored exactly as given.

    :param collection: the collection.
    :param document: the document, with its ``_id``.
    """
    # Compared as BSON, which cuts microseconds and stores a tuple as an array.
    ours = collection.codec_options
    raw = ours.with_options(document_class=RawBSONDocument)
    # A secondary, which the URI may prefer, may not have the document yet.
    primary = collection.with_options(raw, ReadPreference.PRIMARY)
    found = primary.find_one({"_id": document["_id"]})
    return found is not None and found.raw == bson.encode(document, codec_options=ours)


def is_unsent(error: BaseException) -> bool:
    """Return whether *error* was raised before anything was sent."""
    return isinstance(error, PoolTimeout | PoolClosed) or isinstance(
        error.__cause__, ServerSelectionTimeoutError
    )


def repeated(attempt: Callable[[bool], T], *, may_come_again: bool = True) -> T:
    """
    Call *attempt* until the connection is not lost during the call.

    :param attempt: takes a bool: whether an earlier attempt may have reached the server.
    :param may_come_again: the caller may repeat the operation if its outcome is unknown, bool,
        default True.
    :returns: the result of *attempt*.
    :raises StoreDown: the last attempt was lost.
    :raises OutcomeUnknown: instead, without *may_come_again*, if the operation may have been done.
    """
    started = monotonic()
    # Without tenacity, which costs 15 us for each operation.
    try:
        return attempt(False)
    except StoreDown as error:
        if not _is_lost(error):
            raise
        first = error
    return _again(attempt, first, started, may_come_again)


def _again(
    attempt: Callable[[bool], T], first: StoreDown, started: float, may_come_again: bool
) -> T:
    arrived = False
    # To tenacity, the first attempt is the one that has already failed.
    pending: list[StoreDown] = [first]

    def attempt_again() -> T:
        nonlocal arrived
        try:
            if pending:
                raise pending.pop()
            return attempt(arrived)
        except StoreDown as error:
            # An attempt that was sent may have been done, regardless of the later errors.
            arrived = arrived or not is_unsent(error)
            raise

    def is_over(state: RetryCallState) -> bool:
        pause_s, left_s = state.upcoming_sleep, deadline.remaining()
        # No pause that ends after the deadline: the error of the outage says more than a timeout.
        return (
            state.attempt_number >= MAX_ATTEMPTS
            or monotonic() - started + pause_s >= OUTAGE_S
            or (left_s is not None and pause_s >= left_s)
        )

    retrying = Retrying(
        retry=retry_if_exception(_is_lost),
        # Full jitter (AWS Architecture Blog, "Exponential Backoff and Jitter"). stamina, which
        # wraps tenacity, only adds a jitter to the exponential pause. Both sleep with time.sleep,
        # which gevent patches.
        wait=wait_random_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
        stop=is_over,
        reraise=True,
    )
    try:
        return retrying(attempt_again)
    except StoreDown as error:
        if arrived and not may_come_again:
            raise OutcomeUnknown from error
        raise


def _is_lost(error: BaseException) -> bool:
    if not isinstance(error, StoreDown):
        return False
    cause = error.__cause__
    # AutoReconnect is the base of NetworkTimeout, ServerSelectionTimeoutError, NotPrimaryError.
    return isinstance(cause, AutoReconnect) or getattr(cause, "code", None) in CURSOR_CODES
