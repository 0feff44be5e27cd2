"""The id, the timestamps and the version that every document in MongoDB has."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from time import time

from bson import ObjectId

from app.store.ports import Document

_PREFIX_BYTES = 6
_INDEX_BYTES = 2


def new_ids(count: int) -> list[ObjectId]:
    """
    Return *count* new ids in ascending order.

    Ids of one batch differ only in their last two bytes, so that each can be derived from any
    other: see :func:`sibling`.
    """
    # The driver's own ids ascend within this process.
    if count == 1:
        return [ObjectId()]
    prefix = int(time()).to_bytes(4, "big") + os.urandom(_PREFIX_BYTES)
    first = ObjectId(prefix + bytes(_INDEX_BYTES))
    return [sibling(first, index) for index in range(count)]


def sibling(one: ObjectId, index: int) -> ObjectId:
    """
    Return another id of a batch.

    :param one: any id of the batch.
    :param index: position in the batch, int.
    """
    return ObjectId(one.binary[:-_INDEX_BYTES] + index.to_bytes(_INDEX_BYTES, "big"))


def now() -> datetime:
    """Return the current time in UTC, in whole milliseconds."""
    # MongoDB stores milliseconds: without this the first answer would differ from later ones.
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def made(contents: Sequence[Document], ids: Sequence[ObjectId], at: datetime) -> list[Document]:
    """
    Return new documents.

    :param contents: the items' fields.
    :param ids: their ``_id``s.
    :param at: when they are created, in UTC.
    """
    return [
        {"_id": item_id, **content, "created_at": at, "updated_at": at, "version": 1}
        for item_id, content in zip(ids, contents, strict=True)
    ]


def rfc3339(moment: datetime) -> str:
    """Return *moment*, in UTC, in the format of the documents in Postgres."""
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
