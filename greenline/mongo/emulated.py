"""
Write several documents on a server without transactions.

They are written in order, and the written ones are undone when one is refused: other clients see
parts of the batch meanwhile, and a ``kill -9`` leaves them. The emulation stands in this module
alone, so that it can be removed when every supported server has transactions.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference
from pymongo.database import Database

from greenline.errors import OutcomeUnknown
from greenline.hub import deadline
from greenline.mongo import apart
from greenline.mongo.retry import Document, is_unsent, repeated
from greenline.mongo.versions import Changed, Pair, Versions, replacements

Options = CodecOptions[Any]

# Both texts follow any error, not only a lost connection.
UNDO_FAILED = "a part of the batch was written and could not be undone: look before you repeat it"
UNDO_INTERRUPTED = "a part of the batch was written and is being undone: look before you repeat it"


class EmulatedBatches(Versions):
    """Add the operations on several documents without a transaction."""

    def _insert_in_order(
        self, collection: str, documents: Sequence[Document], are_ours: bool
    ) -> None:
        """Insert *documents*; undo it if that fails and no other client inserts them."""
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
            done = database[collection].bulk_write(replacements(left))
        # A replacement that matches nothing is no error of the server's.
        if done.matched_count < len(left):
            raise Changed

    def _left(self, collection: str, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs that are still to be replaced, after an answer was lost."""
        now, options = self._raw(collection, pairs)
        left = []
        for old, new in pairs:
            found = now.get(old["_id"])
            if found is None:
                raise Changed
            if _is(found, new, options):
                continue
            version = found.get("version")
            if version not in (old.get("version"), new["version"]):
                # Another client replaced the old document, or the one of our lost attempt.
                raise OutcomeUnknown
            # Our new version number with other content: another client made the same step.
            if version != old.get("version"):
                raise Changed
            left.append((old, new))
        return left

    def _swap_back(self, collection: str, pairs: Sequence[Pair]) -> None:
        now, options = self._raw(collection, pairs)
        ours = [
            (new, old)
            for old, new in reversed(pairs)
            if (found := now.get(old["_id"])) is not None and _is(found, new, options)
        ]
        if ours:
            with suppress(Changed):  # a document that another client changed since is kept
                repeated(lambda arrived: self._replace_left(collection, ours, arrived))

    def _raw(
        self, collection: str, pairs: Sequence[Pair]
    ) -> tuple[dict[Any, RawBSONDocument], Options]:
        """
        Return the stored documents of *pairs* by ``_id``, read from the primary, and how the
        database encodes documents.
        """
        query = {"_id": {"$in": [old["_id"] for old, _ in pairs]}}

        def read(
            database: "Database[Document]",
        ) -> tuple[dict[Any, RawBSONDocument], Options]:
            # Raw, so that the documents can be compared byte by byte.
            options = database.codec_options
            raw = options.with_options(document_class=RawBSONDocument)
            primary = database[collection].with_options(raw, ReadPreference.PRIMARY)
            return {document["_id"]: document for document in primary.find(query)}, options

        return self.read(read)

    def _undo(self, work: Callable[[], None], items: int, error: BaseException) -> None:
        try:
            is_undone = apart.do(work, "undoing a batch", items)
        except BaseException:  # the wait was interrupted; the undo goes on in its greenlet
            raise OutcomeUnknown(UNDO_INTERRUPTED) from error
        if not is_undone:
            raise OutcomeUnknown(UNDO_FAILED) from error


def _is(found: RawBSONDocument, document: Document, options: Options) -> bool:
    # Byte by byte: a decoded document compares unequal where BSON cuts microseconds.
    return found.raw == bson.encode(document, codec_options=options)
