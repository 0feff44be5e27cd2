"""What every document in MongoDB has of its own: an id, stamps and a version."""

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
    Return *count* new ids that ascend.

    One is the driver's own: it ascends within this process. Those of a batch differ in their last
    bytes alone, so that each can be told from any other: see :func:`sibling`.
    """
    if count == 1:
        return [ObjectId()]
    prefix = int(time()).to_bytes(4, "big") + os.urandom(_PREFIX_BYTES)
    first = ObjectId(prefix + bytes(_INDEX_BYTES))
    return [sibling(first, index) for index in range(count)]


def sibling(one: ObjectId, index: int) -> ObjectId:
    """Return the id at *index* in the batch of *one*."""
    return ObjectId(one.binary[:-_INDEX_BYTES] + index.to_bytes(_INDEX_BYTES, "big"))


def now() -> datetime:
    """MongoDB keeps milliseconds: cut here, so that the first answer is like all later ones."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def made(contents: Sequence[Document], ids: Sequence[ObjectId], at: datetime) -> list[Document]:
    """Return the documents of *contents*, new."""
    return [
        {"_id": item_id, **content, "created_at": at, "updated_at": at, "version": 1}
        for item_id, content in zip(ids, contents, strict=True)
    ]


def rfc3339(moment: datetime) -> str:
    """Return *moment*, which is UTC, as Postgres's documents have it."""
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
