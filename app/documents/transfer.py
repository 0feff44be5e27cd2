"""
Export the documents of a collection to a file and import them, as raw BSON.

Memory is bounded, whatever the size of the collection: by one batch for an export, by one batch for
each thread for an import.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError

from app.documents import ids
from app.documents.files import FileError, Numbered
from app.documents.progress import plural
from app.documents.reading import BATCH
from greenline.mongo.errors import DUPLICATE_KEY

# A batch is one message; the server accepts 48 MB.
BATCH_BYTES = 4 * 1024 * 1024


class ImportRefused(Exception):
    """The server refused a document; the message names it."""


@dataclass
class TransferOutcome:
    """
    The result of one batch.

    :param inserted: documents that were inserted, int. Default 0.
    :param skipped: documents whose ``_id`` existed already, int. Default 0.
    :param unknown: documents that were sent and not acknowledged, int; they may be stored.
        Default 0.
    :param refusals: the server's messages about refused documents. Default none.
    :param error: the error that ended the batch. Default None.
    """

    inserted: int = 0
    skipped: int = 0
    unknown: int = 0
    refusals: list[str] = field(default_factory=list)
    error: PyMongoError | None = None


@dataclass
class Imported:
    """
    The progress of an import.

    :param inserted: documents that were inserted, int. Default 0.
    :param skipped: documents whose ``_id`` existed already, int. Default 0.
    :param unknown: documents that were sent and not acknowledged, int; they may be stored.
        Default 0.
    """

    inserted: int = 0
    skipped: int = 0
    unknown: int = 0

    def __str__(self) -> str:
        text = f"{self.inserted:,} {plural(self.inserted)} imported"
        text += f", {self.skipped:,} were there already" if self.skipped else ""
        return text + (f", {self.unknown:,} may be there or not" if self.unknown else "")

    def add(self, outcome: TransferOutcome) -> None:
        """Add the numbers of one batch."""
        self.inserted += outcome.inserted
        self.skipped += outcome.skipped
        self.unknown += outcome.unknown


def export_documents(
    batches: Iterable[list[bytes]],
    write: Callable[[bytes], object],
    to_file: Callable[[bytes], bytes],
) -> int:
    """
    Write documents to a file.

    :param batches: lists of raw BSON.
    :param write: writes bytes to the file.
    :param to_file: converts a document to the file's format.
    :returns: the number of documents.
    :raises FileError: a document cannot be written in this format; the message names it.
    """
    count = 0
    for batch in batches:
        for document in batch:
            count += 1
            try:
                line = to_file(document)
            except FileError as error:
                raise FileError(f"document {count}{_name(document)}: {error}") from error
            write(line)
    return count


def _name(document: bytes) -> str:
    """Return the ``_id`` for an error message, "" if it cannot be shown."""
    element = ids.id_of(document)
    if element is None or not ids.is_readable(element):
        return ""
    return f", _id {ids.value_of(element)!r}"


def import_documents(
    collection: "Collection[Any]",
    documents: Iterable[Numbered],
    *,
    noun: str,
    at_once: int,
    skip_duplicates: bool,
    done: Imported,
) -> None:
    """
    Insert documents in batches, several at a time, begun in their order.

    After a refused document no further batch is sent.

    :param collection: the target.
    :param documents: with their numbers in the file.
    :param noun: the name of a document in errors, such as "line".
    :param at_once: batches in progress at a time, int.
    :param skip_duplicates: leave out documents whose ``_id`` exists already, bool.
    :param done: its numbers are updated.
    :raises ImportRefused: the server refused a document; the message names the first one.
    :raises PyMongoError: the server failed, or the connection was lost.
    """
    sent: deque[Future[TransferOutcome]] = deque()
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for batch in in_batches(documents):
                # At most at_once batches are in memory besides the one that is being read.
                if len(sent) == at_once:
                    _await_first(sent, done)
                sent.append(pool.submit(_insert, collection, batch, noun, skip_duplicates))
            while sent:
                _await_first(sent, done)
        finally:
            # After an error: the batches in progress are waited for, as they may be stored and have
            # to be counted.
            for future in sent:
                done.add(future.result())


def in_batches(documents: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    """Yield *documents* in lists of at most ``BATCH`` documents and about ``BATCH_BYTES``."""
    # A single larger document is a list of its own.
    batch: list[Numbered] = []
    size_bytes = 0
    for one in documents:
        if batch and (len(batch) == BATCH or size_bytes + len(one[1]) > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(one)
        size_bytes += len(one[1])
    if batch:
        yield batch


def _insert(
    collection: "Collection[Any]", batch: list[Numbered], noun: str, skip_duplicates: bool
) -> TransferOutcome:
    # Unordered: the server tries every document, so that all refusals of the batch are known.
    try:
        collection.insert_many([RawBSONDocument(raw) for _, raw in batch], ordered=False)
    except BulkWriteError as error:
        return _outcome(error.details, batch, noun, skip_duplicates)
    except PyMongoError as error:
        return TransferOutcome(unknown=len(batch), error=error)
    return TransferOutcome(inserted=len(batch))


def _outcome(
    details: Any, batch: list[Numbered], noun: str, skip_duplicates: bool
) -> TransferOutcome:
    outcome = TransferOutcome(inserted=details["nInserted"])
    for refused in sorted(details["writeErrors"], key=lambda one: one["index"]):
        if skip_duplicates and _is_duplicate_id(refused):
            outcome.skipped += 1
        else:
            number = batch[refused["index"]][0]
            outcome.refusals.append(f"{noun} {number}: {refused['errmsg']}")
    for unsure in details.get("writeConcernErrors", ()):
        outcome.refusals.append(f"{noun} {batch[0][0]} and what follows: {unsure['errmsg']}")
    return outcome


def _is_duplicate_id(refused: Any) -> bool:
    if refused["code"] != DUPLICATE_KEY:
        return False
    # Servers report the fields of the index, or its name in the text, or both.
    pattern = refused.get("keyPattern")
    return list(pattern) == ["_id"] if pattern else "_id_" in refused["errmsg"]


def _await_first(sent: "deque[Future[TransferOutcome]]", done: Imported) -> None:
    # Removed after the wait: if Ctrl-C interrupts it, the batch is still counted.
    outcome = sent[0].result()
    sent.popleft()
    done.add(outcome)
    if outcome.error is not None:
        raise outcome.error
    if outcome.refusals:
        first, *others = outcome.refusals
        more = f", and {len(others):,} more of this batch" if others else ""
        raise ImportRefused(f"{first}{more}")
