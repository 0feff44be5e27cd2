"""
Change or delete a document only if it was not changed since it was read.

Each change gives the document another ``version``. Of two clients that read the same version, one
succeeds, and the other one has to read the document again.
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager

from pymongo import ReadPreference, ReplaceOne
from pymongo.database import Database

from greenline.errors import OutcomeUnknown
from greenline.mongo.capabilities import Capabilities, read_capabilities
from greenline.mongo.retry import Document, Repeating, is_stored, repeated

# A document as it was read, and its replacement.
Pair = tuple[Document, Document]

log = logging.getLogger(__name__)


class Changed(Exception):
    """Another client changed or deleted a document of the batch since it was read."""


class Versions(Repeating):
    """Add the operations on a version of a document to a class that has ``database()``."""

    _capabilities: Capabilities | None = None

    def database(self, *, repeatable: bool = False) -> "AbstractContextManager[Database[Document]]":
        raise NotImplementedError

    def capabilities(self) -> Capabilities:
        """
        Return the server's capabilities, which are read once.

        :raises StoreDown: the server cannot be reached.
        """
        if self._capabilities is None:
            capabilities = self.read(read_capabilities)
            if self._capabilities is None:  # checked again, as the read was a wait
                level = logging.DEBUG if capabilities.has_transactions else logging.INFO
                log.log(level, "mongodb: %s", capabilities)
                self._capabilities = capabilities
        return self._capabilities

    def swap(self, collection: str, old: Document, new: Document) -> bool:
        """
        Replace a document.

        :param collection: the collection's name, str.
        :param old: the document as it was read.
        :param new: its replacement, with another ``version``.
        :returns: False when *old* was changed or deleted since.
        :raises Conflict: *new* violates a unique index.
        :raises StoreDown: the server cannot be reached; it may have been replaced.
        :raises OutcomeUnknown: another client changed it, perhaps after our replacement.
        """
        key, versions = {"_id": old["_id"]}, (old.get("version"), new["version"])

        def attempt(arrived: bool) -> bool:
            with self.database(repeatable=True) as database:
                found = database[collection]
                if found.replace_one({**key, "version": versions[0]}, new).matched_count:
                    return True
                if not arrived:
                    return False
                # The answer to an earlier attempt was lost: it may have replaced the document.
                if is_stored(found, new):
                    return True
                now = found.with_options(read_preference=ReadPreference.PRIMARY).find_one(key)
                # A third version: the other client's change came before or after ours.
                if now is not None and now.get("version") not in versions:
                    raise OutcomeUnknown
                return False

        return repeated(attempt)

    def remove(self, collection: str, old: Document) -> bool:
        """
        Delete a document.

        :param collection: the collection's name, str.
        :param old: the document as it was read.
        :returns: False when it was changed or deleted since; True if it is missing after a lost
            answer, as with ``delete()``.
        :raises StoreDown: the server cannot be reached; it may have been deleted.
        """
        key = {"_id": old["_id"]}

        def attempt(arrived: bool) -> bool:
            with self.database(repeatable=True) as database:
                found = database[collection]
                if found.delete_one({**key, "version": old.get("version")}).deleted_count:
                    return True
                primary = found.with_options(read_preference=ReadPreference.PRIMARY)
                return arrived and primary.find_one(key) is None

        return repeated(attempt)


def replacements(pairs: Sequence[Pair]) -> list[ReplaceOne[Document]]:
    """Return the writes that replace each old document whose version is as it was read."""
    return [
        ReplaceOne({"_id": old["_id"], "version": old.get("version")}, new) for old, new in pairs
    ]
