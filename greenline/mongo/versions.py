"""
Change a document only as it was read: by its ``version``, which is another one at each change.

1. Of two who read the same document one succeeds, and the other is told to read it again.
2. After a lost answer it is tried again, as it does nothing the second time. But when others
   changed the document since, nobody can tell whether ours came before theirs.
3. What the server can do is asked once, by the first who needs to know.
"""

import logging
from contextlib import AbstractContextManager

from pymongo import ReadPreference
from pymongo.database import Database

from greenline.errors import OutcomeUnknown
from greenline.mongo.capabilities import Capabilities, read_capabilities
from greenline.mongo.retry import Document, Repeating, is_stored, repeated

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

    def swap(self, collection: str, old: Document, new: Document) -> bool:
        """
        Put *new* in the place of *old*; False when that was changed, or is gone.

        Raises:
            Conflict: it contradicts a unique index.
            StoreDown: the server cannot be reached; it may have been done.
            OutcomeUnknown: it may have been done before others changed it.
        """
        key, versions = {"_id": old["_id"]}, (old.get("version"), new["version"])

        def attempt(arrived: bool) -> bool:
            with self.database(repeatable=True) as database:
                found = database[collection]
                if found.replace_one({**key, "version": versions[0]}, new).matched_count:
                    return True
                if not arrived:
                    return False
                if is_stored(found, new):
                    return True
                now = found.with_options(read_preference=ReadPreference.PRIMARY).find_one(key)
                if now is not None and now.get("version") not in versions:
                    raise OutcomeUnknown
                return False

        return repeated(attempt)

    def remove(self, collection: str, old: Document) -> bool:
        """
        Delete *old*; False when it was changed, or is gone.

        As with ``delete()``, what is gone after a lost answer counts as deleted.

        Raises:
            StoreDown: the server cannot be reached; it may have been deleted.
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
