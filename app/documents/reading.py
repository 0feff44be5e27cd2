"""
A collection in the order of its ``_id``, batch by batch, as raw BSON.

One cursor reads all of it. When it is lost, or a copy goes on where another ended, the server is
asked from the last ``_id`` on, by the lower bound of an index scan: ``$gt`` compares within one
BSON type only, and a collection may have ``_id``s of several.
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
    Iterate over the documents of *source*, in lists of raw BSON.

    :param batch: documents in a list at most, int, default 1,000; a reply of the server has no
        more than 16 MB.
    :param after: element of an ``_id``: only what comes behind it is read.
    :param first: element of the first ``_id`` that is read.
    :param end: element of the first ``_id`` that is not read any more.
    :param stopping: once set, a source that is away is not waited for.
    :raises PyMongoError: the source refuses, or is away for too long.
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
            self._cursor = None
            if is_new and self._is_bounded() and _is_refusal(error):
                return self._without_bounds(error)
            raise
        return self._behind(documents)

    def _is_bounded(self) -> bool:
        return self._takes_bounds and any((self._after, self._first, self._end))

    def _without_bounds(self, error: PyMongoError) -> list[bytes] | None:
        """Read from a server, or a view, that knows no bounds: by comparing across types."""
        self._takes_bounds = False
        try:
            return self._next()
        except OperationFailure:
            raise error from None  # the first reason is the better one

    def _behind(self, documents: list[bytes]) -> list[bytes]:
        # The lower bound is inclusive: the document before is the first one, or gone.
        if documents and self._after and ids.id_of(documents[0]) == self._after:
            documents = documents[1:]
        self._after = ids.last_readable(documents) or self._after
        return documents

    def _open(self) -> "RawBatchCursor[Any]":
        least, end = self._after or self._first, self._end
        asked: dict[str, Any] = {"sort": BY_ID, "batch_size": self._batch}
        if not (least or end):
            return self._collection.find_raw_batches(**asked)
        if not self._takes_bounds:
            return self._collection.find_raw_batches(_between(least, end), **asked)
        cursor = self._collection.find_raw_batches(hint=BY_ID, **asked)
        if least:
            cursor.min([("_id", ids.value_of(least))])
        if end:
            cursor.max([("_id", ids.value_of(end))])
        return cursor


def _is_refusal(error: PyMongoError) -> bool:
    return isinstance(error, OperationFailure) and not passes(error)


def _between(least: bytes | None, end: bytes | None) -> dict[str, Any]:
    """Return the filter for ids from *least* to before *end*, in the server's order of types."""
    parts = [
        {operator: ["$_id", {"$literal": ids.value_of(element)}]}
        for operator, element in (("$gte", least), ("$lt", end))
        if element
    ]
    return {"$expr": {"$and": parts}}
