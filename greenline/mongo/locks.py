"""
Locks for servers that find and replace a document in two steps: who changes it takes turns.

1. A lock is a document whose ``_id`` names what it locks: an insert is what only one of two
   succeeds with. Several are taken at once or not at all, so nobody waits while holding some.
2. It has an end, after which those who wait remove it: a process that died locks nothing for good.
3. It is given back also when the request was interrupted.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from random import uniform
from time import monotonic

import gevent
from bson import ObjectId

from greenline import deadline
from greenline.errors import Conflict, SerializationFailure
from greenline.mongo import apart
from greenline.mongo.retry import Document, Lender, repeated

COLLECTION = "locks"
WAIT_S = 30.0  # at most, and for work without a deadline
LONGEST_PAUSE_S = 0.02


@contextmanager
def held(lender: Lender, names: Sequence[str]) -> Iterator[None]:
    """
    Hold the locks of *names* for the length of the block.

    Raises:
        SerializationFailure: others held some of them for too long.
        StoreDown: the server cannot be reached.
    """
    owner = ObjectId()
    try:
        _take(lender, names, owner)
        yield
    finally:
        ours = {"_id": {"$in": list(names)}, "owner": owner}
        apart.do(lambda: _delete(lender, ours), "giving back locks")


def _take(lender: Lender, names: Sequence[str], owner: ObjectId) -> None:
    until = monotonic() + WAIT_S
    here = {"_id": {"$in": list(names)}}
    while not _insert(lender, names, owner):
        _delete(lender, {**here, "owner": owner})
        _delete(lender, {**here, "until": {"$lt": datetime.now(UTC)}})
        if monotonic() >= until:
            raise SerializationFailure
        gevent.sleep(uniform(0, LONGEST_PAUSE_S))  # noqa: S311


def _insert(lender: Lender, names: Sequence[str], owner: ObjectId) -> bool:
    """Return whether all locks were free; some may be ours now, when not."""
    lasts_s = (deadline.remaining(WAIT_S) or 0) + 2 * apart.limit_s(len(names))
    end = datetime.now(UTC) + timedelta(seconds=lasts_s)
    locks = [{"_id": name, "owner": owner, "until": end} for name in names]

    def attempt(_: bool) -> bool:
        with lender.database(repeatable=True) as database:
            database[COLLECTION].insert_many(locks)
        return True

    try:
        return repeated(attempt)
    except Conflict:
        return False


def _delete(lender: Lender, which: Document) -> None:
    def attempt(_: bool) -> None:
        with lender.database(repeatable=True) as database:
            database[COLLECTION].delete_many(which)

    repeated(attempt)
