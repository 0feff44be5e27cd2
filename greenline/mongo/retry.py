"""
Repeat an operation whose server was lost on the way, where it may happen twice.

1. What may: reads; an insert with an ``_id`` made here; a change of one document by its ``_id``
   that says what is to be, not what is to be added; a delete by ``_id``. Everything else
   (``$inc``, ``$push``, a filter that finds another document the second time) is done in a
   ``database()`` block and never repeated here; when its answer is lost, that is told. What takes
   more care is in :mod:`greenline.mongo.versions` and :mod:`greenline.mongo.batches`.
2. Repeated after AutoReconnect and its kinds: NetworkTimeout, ServerSelectionTimeoutError,
   NotPrimaryError; and where the server has lost the cursor of a read. A deadline that passed is
   none of them.
3. Between attempts: exponential back-off with full jitter (AWS Architecture Blog, "Exponential
   Backoff and Jitter"), never beyond the deadline.
4. An outage is told after ``OUTAGE_S``, however much time the request has left.

tenacity, because its ``wait_random_exponential`` is full jitter: stamina, which wraps it, adds a
jitter on top of the exponential pause. It sleeps with ``time.sleep``, which is gevent's here, and
imports no asyncio. The first attempt does not go through it: that would cost 15 us an operation.
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

# No new attempt begins later than this after the first one: it is an outage then.
OUTAGE_S = 5.0
MAX_ATTEMPTS = 6
FIRST_PAUSE_S = 0.05  # at most, as the following ones
LONGEST_PAUSE_S = 1.0

# Done twice they leave what they left when done once.
REPEATABLE_OPERATORS = frozenset({"$set", "$unset", "$min", "$max"})


class Lender(Protocol):
    """Lends the database, and lets errors out as those of :mod:`greenline.errors`."""

    def database(
        self, *, repeatable: bool = False
    ) -> "AbstractContextManager[Database[Document]]": ...


class Repeating:
    """The operations that are repeated, for a class that lends a database."""

    def read(self: Lender, work: "Callable[[Database[Document]], T]") -> T:
        """
        Return what *work* returns, which only reads, and reads to the end: no cursor leaves it.

        Raises:
            StoreDown: the server cannot be reached, nor could it a little later.
        """

        def attempt(_: bool) -> T:
            with self.database(repeatable=True) as database:
                return work(database)

        return repeated(attempt)

    def insert(
        self: Lender, collection: str, document: Document, *, may_come_again: bool = True
    ) -> None:
        """
        Insert *document*, whose ``_id`` the caller has just made.

        A duplicate is a success when it is our own: an earlier attempt arrived, whose answer was
        lost. So what has the ``_id`` is compared; the error may name another unique index.

        :param may_come_again: the caller may insert this very document again, bool, default True.

        Raises:
            Conflict: it contradicts a unique index.
            StoreDown: the server cannot be reached; the document may have been stored, if it may
                come again.
            OutcomeUnknown: it may not come again, and may have been stored.
        """
        if "_id" not in document:
            raise ValueError("without an _id of ours, a second attempt would insert it twice")

        def attempt(arrived: bool) -> None:
            with self.database(repeatable=True) as database:
                try:
                    database[collection].insert_one(document)
                except DuplicateKeyError:
                    if not arrived or not is_stored(database[collection], document):
                        raise

        repeated(attempt, may_come_again=may_come_again)

    def update(
        self: Lender, collection: str, document_id: Any, change: Mapping[str, Any]
    ) -> Document | None:
        """
        Change one document; return it as it is now, None when there is none of this ``_id``.

        *change* is a whole document in its place, or operators of ``REPEATABLE_OPERATORS``. A
        repeated change wins over what someone else wrote between the attempts, as one that came
        a moment later would.

        Raises:
            Conflict: it contradicts a unique index.
            StoreDown: the server cannot be reached; the change may have been made.
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
        Delete one document; return whether there was one.

        When an earlier attempt may have arrived, and a later one finds nothing, that counts as
        deleted. Whether it was there before the first cannot be known any more; that it is gone
        is what the caller asked for, and what is said.

        Raises:
            StoreDown: the server cannot be reached; the document may have been deleted.
        """

        def attempt(arrived: bool) -> bool:
            with self.database(repeatable=True) as database:
                gone = database[collection].delete_one({"_id": document_id}).deleted_count
            return bool(gone) or arrived

        return repeated(attempt)


def is_stored(collection: "Collection[Document]", document: Document) -> bool:
    """Return whether *document* is there, byte by byte: BSON cuts microseconds, knows no tuple."""
    ours = collection.codec_options
    raw = ours.with_options(document_class=RawBSONDocument)
    # The primary is asked, whatever the URI prefers: others may not have it yet.
    primary = collection.with_options(raw, ReadPreference.PRIMARY)
    found = primary.find_one({"_id": document["_id"]})
    return found is not None and found.raw == bson.encode(document, codec_options=ours)


def is_unsent(error: BaseException) -> bool:
    """Return whether *error* came before anything was sent: no server, or no connection."""
    return isinstance(error, PoolTimeout | PoolClosed) or isinstance(
        error.__cause__, ServerSelectionTimeoutError
    )


def repeated(attempt: Callable[[bool], T], *, may_come_again: bool = True) -> T:
    """
    Call *attempt* until it is not lost; its argument says whether an earlier one may have arrived.

    :param may_come_again: the caller may repeat it where it may have been done, bool, default True.
    :raises OutcomeUnknown: it was lost in the end, may have been done, and must not come again.
    """
    started = monotonic()
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
    pending: list[StoreDown] = [first]  # tenacity's first attempt is the one that was made

    def tell() -> T:
        nonlocal arrived
        try:
            if pending:
                raise pending.pop()
            return attempt(arrived)
        except StoreDown as error:
            arrived = arrived or not is_unsent(error)
            raise

    def is_over(state: RetryCallState) -> bool:
        pause_s, left_s = state.upcoming_sleep, deadline.remaining()
        return (
            state.attempt_number >= MAX_ATTEMPTS
            or monotonic() - started + pause_s >= OUTAGE_S
            or (left_s is not None and pause_s >= left_s)
        )

    retrying = Retrying(
        retry=retry_if_exception(_is_lost),
        wait=wait_random_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
        stop=is_over,
        reraise=True,
    )
    try:
        return retrying(tell)
    except StoreDown as error:
        if arrived and not may_come_again:
            raise OutcomeUnknown from error
        raise


def _is_lost(error: BaseException) -> bool:
    if not isinstance(error, StoreDown):
        return False
    cause = error.__cause__
    return isinstance(cause, AutoReconnect) or getattr(cause, "code", None) in CURSOR_CODES
