"""
Change a document only as it was read: by its ``version``, which is another one at each change.

1. Of two who read the same document one succeeds, and the other is told to read it again.
2. Where the server does not find and replace in one step, who changes a document holds its lock:
   :meth:`Versions.exclusive`, which is nothing elsewhere.
3. After a lost answer it is tried again, as it does nothing the second time. But when others
   changed the document since, nobody can tell whether ours came before theirs.
4. What the server can do is asked once, by the first who needs to know.
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from pymongo import ReadPreference
from pymongo.database import Database

from greenline.errors import OutcomeUnknown
from greenline.mongo import locks
from greenline.mongo.capabilities import Capabilities, read_capabilities
from greenline.mongo.retry import Document, Repeating, is_stored, repeated

# The lock of who changes several documents.
BATCH = "batch"

log = logging.getLogger(__name__)


class Versions(Repeating):
    """The operations on a version of a document, for a class that lends a database."""

    _capabilities: Capabilities | None = None

    def database(self, *, repeatable: bool = False) -> "AbstractContextManager[Database[Document]]":
        raise NotImplementedError

    def capabilities(self) -> Capabilities:
        """
        Return what the server can do.

        Raises:
            StoreDown: it cannot be reached.
        """
        if self._capabilities is None:
            told = self.read(read_capabilities)
            if self._capabilities is None:  # another greenlet may have been faster
                log.info("mongodb: %s", told)
                self._capabilities = told
        return self._capabilities

    def exclusive(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """
        Return the block in which to change what *names* stand for; blocks of several take turns.

        Raises:
            SerializationFailure: others were at it for too long.
            StoreDown: the server cannot be reached.
        """
        if self.capabilities().can_swap:
            return nullcontext()
        # The turn first: who does not get it has inserted no other.
        return locks.held(self, [BATCH, *names] if len(names) > 1 else names)

    def swap(self, collection: str, old: Document, new: Document) -> bool:
        """
        Put *new* in the place of *old*, in an ``exclusive()`` block; False when that is gone.

        Raises:
            Conflict: it contradicts a unique index.
            StoreDown: the server cannot be reached; it may have been done.
            OutcomeUnknown: it may have been done before others changed it.
        """
        key, versions = {"_id": old["_id"]}, (old.get("version"), new["version"])
        can_swap = self.capabilities().can_swap

        def attempt(arrived: bool) -> bool:
            with self.database(repeatable=True) as database:
                found = database[collection]
                if can_swap:
                    this = {**key, "version": versions[0]}
                    if found.replace_one(this, new).matched_count:
                        return True
                    if not arrived:
                        return False
                if arrived and is_stored(found, new):
                    return True
                now = found.with_options(read_preference=ReadPreference.PRIMARY).find_one(key)
                if now is None:
                    return False
                version = now.get("version")
                if arrived and version not in versions:
                    raise OutcomeUnknown
                if can_swap or version != versions[0]:
                    return False
                return bool(found.replace_one(key, new).matched_count)

        return repeated(attempt)

    def remove(self, collection: str, old: Document) -> bool:
        """
        Delete *old*, in an ``exclusive()`` block; False when it was changed, or is gone.

        As with ``delete()``, what is gone after a lost answer counts as deleted.

        Raises:
            StoreDown: the server cannot be reached; it may have been deleted.
        """
        key = {"_id": old["_id"]}
        this = {**key, "version": old.get("version")}
        can_swap = self.capabilities().can_swap

        def attempt(arrived: bool) -> bool:
            with self.database(repeatable=True) as database:
                found = database[collection]
                primary = found.with_options(read_preference=ReadPreference.PRIMARY)
                is_there = can_swap or primary.find_one(this) is not None
                if is_there and found.delete_one(this if can_swap else key).deleted_count:
                    return True
                return arrived and primary.find_one(key) is None

        return repeated(attempt)
