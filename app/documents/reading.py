"""
Read a collection in the order of its ``_id``, in batches of raw BSON.

One cursor reads all of it. If it is lost, or a copy continues another one, a new cursor begins at
the last ``_id``.
"""

from collections.abc import Iterator
from threading import Event
from typing import Any

from pymongo.errors import OperationFailure, PyMongoError
from pymongo.synchronous.cursor import RawBatchCursor

from app.documents import ids
from app.documents.endpoint import CollectionEndpoint
from app.documents.retry import passes, retrying

BATCH = 1_000
BY_ID = [("_id", 1)]


class Reader:
    """
    Iterate over the documents of a collection, in lists of raw BSON.

    :param source: the collection.
    :param batch: documents in a list at most, int. Default 1,000. A reply of the server has at most
        16 MB.
    :param after: element of the ``_id`` after which reading begins. Default None: the start.
    :param first: element of the first ``_id`` to read. Default None: the start.
    :param end: element of the ``_id`` before which reading ends. Default None: the end.
    :param stopping: once set, an unreachable source is not waited for. Default None.
    :raises PyMongoError: the source refuses, or is unreachable for too long.
    """

    def __init__(
        self,
        source: CollectionEndpoint,
        *,
        batch: int = BATCH,
        after: bytes | None = None,
        first: bytes | None = None,
        end: bytes | None = None,
        stopping: Event | None = None,
    ) -> None:
        self._collection = source.collection
        self._batch = batch
        self._after = after
        self._first = first
        self._end = end
        self._retry = retrying(stopping or Event())
        self._cursor: RawBatchCursor[Any] | None = None
        self._takes_bounds = not source.is_view

    def __iter__(self) -> Iterator[list[bytes]]:
        while (documents := self._retry(self._next)) is not None:
            if documents:
                yield documents

    def close(self) -> None:
        """Close the cursor on the server."""
        if self._cursor is not None:
            self._cursor.close()

    def _next(self) -> list[bytes] | None:
        is_new = self._cursor is None
        try:
            if self._cursor is None:
                self._cursor = self._open()
            documents = ids.split(next(self._cursor))
        except StopIteration:
            return None
        except PyMongoError as error:
            # The next attempt opens a cursor at the last _id that was read.
            self._cursor = None
            if is_new and self._is_bounded() and _is_refused(error):
                return self._without_bounds(error)
            raise
        return self._behind(documents)

    def _is_bounded(self) -> bool:
        return self._takes_bounds and any((self._after, self._first, self._end))

    def _without_bounds(self, error: PyMongoError) -> list[bytes] | None:
        """Read from a server or view without index bounds, by a filter that compares all types."""
        self._takes_bounds = False
        try:
            return self._next()
        except OperationFailure:
            raise error from None  # the first error names the real reason

    def _behind(self, documents: list[bytes]) -> list[bytes]:
        # The lower bound is inclusive: the last document read comes again, unless it was deleted.
        if documents and self._after and ids.id_of(documents[0]) == self._after:
            documents = documents[1:]
        self._after = ids.last_readable(documents) or self._after
        return documents

    def _open(self) -> "RawBatchCursor[Any]":
        start, end = self._after or self._first, self._end
        asked: dict[str, Any] = {"sort": BY_ID, "batch_size": self._batch}
        if not (start or end):
            return self._collection.find_raw_batches(**asked)
        if not self._takes_bounds:
            return self._collection.find_raw_batches(_between(start, end), **asked)
        # Bounds of the index scan, which cover all types: $gt compares within one BSON type only,
        # and a collection may have _ids of several. The server requires the hint.
        cursor = self._collection.find_raw_batches(hint=BY_ID, **asked)
        if start:
            cursor.min([("_id", ids.value_of(start))])
        if end:
            cursor.max([("_id", ids.value_of(end))])
        return cursor


def _is_refused(error: PyMongoError) -> bool:
    return isinstance(error, OperationFailure) and not passes(error)


def _between(start: bytes | None, end: bytes | None) -> dict[str, Any]:
    """Return the filter for ids from *start* to before *end*, in the server's order of types."""
    # $expr compares across types; $literal keeps an _id that looks like an operator a value.
    parts = [
        {operator: ["$_id", {"$literal": ids.value_of(element)}]}
        for operator, element in (("$gte", start), ("$lt", end))
        if element
    ]
    return {"$expr": {"$and": parts}}
