"""
Classify the errors of a batch in the target, for the copy and for the changes after it.

A transient error is retried, an error of the server ends the command, and any other error is a
failure of its document.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pymongo.errors import BulkWriteError, OperationFailure

from app.documents.endpoint import CollectionEndpoint
from app.documents.retry import PASSING_CODES, NotYet
from greenline.errors import StoreError
from greenline.mongo.errors import first_sentence

# Codes of errors that no document has caused: the disk is full, a quota is used up, the user has no
# right to write.
SERVER_CODES = frozenset({8, 13, 18, 20, 39, 8000, 12501, 14031, 17144})
# Codes with which some servers refuse a whole batch because of one document: they decode documents
# that mongod stores unread.
DOCUMENT_CODES = frozenset({2, 9, 15, 22, 10334})

T = TypeVar("T")


@dataclass(frozen=True)
class RefusedElement:
    """
    A document or a change of a batch that the target refuses.

    :param index: its position in the batch, int.
    :param code: MongoDB's, int; None if the server sent none.
    :param reason: the server's message.
    """

    index: int
    code: int | None
    reason: str

    @property
    def passes(self) -> bool:
        """Whether the error is transient."""
        return self.code in PASSING_CODES


def refused_elements(
    target: CollectionEndpoint,
    write: Callable[[Sequence[T]], object],
    batch: Sequence[T],
    *,
    in_order: bool = False,
) -> list[RefusedElement]:
    """
    Write a batch; return the refused elements by index.

    :param target: the collection.
    :param write: writes a batch with pymongo.
    :param batch: the documents or changes.
    :param in_order: nothing is written after the first one that is refused, bool. Default False.
    :raises NotYet: the write concern was not met; the batch is to be written again.
    :raises StoreError: the server refuses for a reason of its own.
    """
    try:
        write(batch)
    except BulkWriteError as error:
        return _refused(target, error.details)
    except OperationFailure as error:
        if error.code not in DOCUMENT_CODES:
            raise
        if len(batch) == 1:
            return [RefusedElement(0, error.code, first_sentence(error))]
        # The batch is refused as a whole because of some documents: they are found by bisection.
        middle = len(batch) // 2
        first = refused_elements(target, write, batch[:middle], in_order=in_order)
        if first and in_order:
            return first
        rest = refused_elements(target, write, batch[middle:], in_order=in_order)
        return first + [replace(one, index=one.index + middle) for one in rest]
    return []


@contextmanager
def target_errors(target: CollectionEndpoint) -> Iterator[None]:
    """Translate the errors of repeated writes in a ``with`` block, adding the target's name."""
    with target.errors():
        try:
            yield
        except NotYet as error:
            reason = f"the target keeps refusing documents for a while: {error}"
            raise StoreError(f"{target.name}: {reason}") from error


def _refused(target: CollectionEndpoint, details: Any) -> list[RefusedElement]:
    # The write concern was not met. Writing the batch again shows what is stored and what is
    # refused.
    for unconfirmed in details.get("writeConcernErrors", ()):
        raise NotYet(str(unconfirmed.get("errmsg")))
    refused = [
        RefusedElement(one["index"], one.get("code"), str(one.get("errmsg")))
        for one in details.get("writeErrors", ())
    ]
    # The server's own error comes before those of documents: it ends the command.
    for one in refused:
        if one.code in SERVER_CODES:
            raise StoreError(f"{target.name}: {one.reason}")
    return refused
