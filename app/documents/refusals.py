"""
What the target's errors of one batch mean: one rule for the copy and for the changes that follow.

What passes is tried again, what is no fault of a document ends the command, and the rest is a
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

# Refusals that are no fault of the document: the disk is full, a quota is used up, the user may not
# write here.
SERVER_CODES = frozenset({8, 13, 18, 20, 39, 8000, 12501, 14031, 17144})
# A batch is refused because of one of its documents: some servers decode what mongod only stores.
DOCUMENT_CODES = frozenset({2, 9, 15, 22, 10334})

T = TypeVar("T")


@dataclass(frozen=True)
class Refusal:
    """
    One of a batch that the target refuses.

    :param index: its place in the batch, int.
    :param code: MongoDB's, int.
    :param reason: the server's words.
    """

    index: int
    code: int | None
    reason: str

    @property
    def passes(self) -> bool:
        """Whether the same may be taken a little later."""
        return self.code in PASSING_CODES


def refusals(
    target: CollectionEndpoint,
    write: Callable[[Sequence[T]], object],
    batch: Sequence[T],
    *,
    in_order: bool = False,
) -> list[Refusal]:
    """
    Write *batch* into *target*; return what it refuses of it, by index.

    :param write: pymongo's way to write it.
    :param in_order: nothing is written behind the first one that is refused, bool.
    :raises NotYet: the batch is not confirmed, and is to be written again.
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
            return [Refusal(0, error.code, first_sentence(error))]
        # Refused because of one of them: in halves, until it is alone.
        middle = len(batch) // 2
        first = refusals(target, write, batch[:middle], in_order=in_order)
        if first and in_order:
            return first
        rest = refusals(target, write, batch[middle:], in_order=in_order)
        return first + [replace(one, index=one.index + middle) for one in rest]
    return []


@contextmanager
def target_errors(target: CollectionEndpoint) -> Iterator[None]:
    """Let the errors of repeated writing out of the block as ours, with the target's name."""
    with target.errors():
        try:
            yield
        except NotYet as error:
            reason = f"the target keeps refusing documents for a while: {error}"
            raise StoreError(f"{target.name}: {reason}") from error


def _refused(target: CollectionEndpoint, details: Any) -> list[Refusal]:
    # The concern was not met: what is there, and what is refused, shows when it is repeated.
    for unconfirmed in details.get("writeConcernErrors", ()):
        raise NotYet(str(unconfirmed.get("errmsg")))
    refused = [
        Refusal(one["index"], one.get("code"), str(one.get("errmsg")))
        for one in details.get("writeErrors", ())
    ]
    for one in refused:
        if one.code in SERVER_CODES:
            raise StoreError(f"{target.name}: {one.reason}")
    return refused
