"""
The checkpoint of a copy: a document in the target's database from which a killed copy continues.

It holds the ``_id`` up to which every document is written, and the process that copies. A second
copy into the same target is refused while the first process is alive, which shows in a number that
it increments every second.
"""

import os
import socket
from dataclasses import dataclass, replace
from threading import Event
from time import monotonic
from typing import Any
from uuid import uuid4

from bson.binary import Binary
from pymongo.errors import DuplicateKeyError

from app.documents.endpoint import CollectionAddress, CollectionEndpoint
from app.documents.retry import retrying
from greenline.errors import ConfigError, Conflict

COLLECTION = "greenline_copies"
BEAT_S = 1.0
# A copy counts as dead after so long without an increment. If it was only slow, its next increment
# finds that another process has taken over, and it stops.
SILENCE_S = 15.0


@dataclass(frozen=True)
class Progress:
    """
    The progress of a copy. It is immutable, so a saved one is always consistent.

    :param after: element of the ``_id`` up to which every document is written; None at first.
    :param copied: documents in the target, int.
    :param skipped: documents that the transform left out, int.
    :param failed: documents in the file of those that failed, int.
    :param token: the source's change stream continues after it, as its server returned it.
    """

    after: bytes | None = None
    copied: int = 0
    skipped: int = 0
    failed: int = 0
    token: Any = None


@dataclass(frozen=True)
class Terms:
    """
    The options that must be the same when a copy continues.

    :param source: server, database and collection, str.
    :param new_ids: documents get new ids, bool.
    :param transform: name of the user's function, None for none.
    """

    source: str
    new_ids: bool
    transform: str | None


class Checkpoint:
    """
    The checkpoint of the only copy into a target.

    :param target: the copy's target.
    :param terms: the copy's options.
    :param stopping: once set, a target that is away is not waited for.
    """

    def __init__(self, target: CollectionEndpoint, terms: Terms, stopping: Event) -> None:
        self._target = target
        self._terms = terms
        self._stopping = stopping
        self._collection = target.sibling_collection(COLLECTION)
        self._key = target.collection.name
        self._token = uuid4().hex
        self._retry = retrying(stopping)
        self.progress = Progress()

    @property
    def owner(self) -> dict[str, Any]:
        """The fields that identify this process in the document."""
        return {"token": self._token, "host": socket.gethostname(), "pid": os.getpid()}

    def claim(self, *, restart: bool) -> bool:
        """
        Create the checkpoint, or take over that of an unfinished copy.

        :param restart: discard the progress of the unfinished copy.
        :returns: whether this copy continues another one.
        :raises Conflict: another copy into this target is running.
        :raises ConfigError: the unfinished copy has other options.
        """
        # The insert decides between two processes: the _id is the target's name.
        with self._target.errors():
            try:
                self._retry(self._collection.insert_one, self._first())
            except DuplicateKeyError:
                return self._take_over(restart)
        return False

    def start(self, token: Any) -> None:
        """Store the position of the change stream before the first document is read."""
        self.progress = replace(self.progress, token=token)
        self.save()

    def save(self) -> None:
        """
        Write the progress, and show that this process is alive.

        :raises Conflict: another process has taken over.
        """
        self._change({"$set": self._state(), "$inc": {"beat": 1}})

    def release(self) -> None:
        """Write the progress and give up ownership, so that the next copy need not wait."""
        self._change({"$set": {**self._state(), "owner": None}})

    def remove(self) -> None:
        """Delete the checkpoint of a finished copy."""
        with self._target.errors():
            self._retry(self._collection.delete_one, self._mine())

    def is_seen_by(self, other: CollectionEndpoint) -> bool:
        """Return whether *other* is a collection of the same database of the same server."""
        with other.errors():
            return other.sibling_collection(COLLECTION).find_one(self._mine()) is not None

    def _first(self) -> dict[str, Any]:
        return {
            "_id": self._key,
            "source": self._terms.source,
            "new_ids": self._terms.new_ids,
            "transform": self._terms.transform,
            "owner": self.owner,
            "beat": 0,
            "after": None,
        }

    def _state(self) -> dict[str, Any]:
        done = self.progress
        return {
            "after": None if done.after is None else Binary(done.after),
            "copied": done.copied,
            "skipped": done.skipped,
            "failed": done.failed,
            "token": done.token,
        }

    def _mine(self) -> dict[str, Any]:
        return {"_id": self._key, "owner.token": self._token}

    def _change(self, change: dict[str, Any]) -> None:
        with self._target.errors():
            # The filter contains the token: a process that was taken over writes nothing.
            changed = self._retry(self._collection.update_one, self._mine(), change)
        if not changed.matched_count:
            raise Conflict(f"{self._target.name}: another process has taken this copy over")

    def _take_over(self, restart: bool) -> bool:
        found = self._collection.find_one({"_id": self._key})
        if found is None:  # its copy finished after our insert
            return self.claim(restart=restart)
        if found["owner"] == self.owner:  # inserted by an attempt whose answer was lost
            return False
        if not restart:
            self._require_same(found)
        self._require_dead(found)
        # Another process may do the same at this moment. The filter is the document as both have
        # read it, so only one of them changes it.
        expected = {"_id": self._key, "beat": found["beat"], "owner": found["owner"]}
        if restart:
            changed = self._collection.replace_one(expected, self._first())
        else:
            change = {"$set": {"owner": self.owner, "beat": 0}}
            changed = self._collection.update_one(expected, change)
        if not changed.matched_count:
            raise self._running(found)
        if not restart:
            self.progress = _progress_in(found)
        return not restart

    def _require_same(self, found: dict[str, Any]) -> None:
        theirs = Terms(found["source"], found["new_ids"], found["transform"])
        if theirs.source != self._terms.source:
            what = f"of {theirs.source}"
        elif theirs.new_ids != self._terms.new_ids:
            what = "with new ids" if theirs.new_ids else "with the same ids"
        elif theirs.transform != self._terms.transform:
            what = f"with --transform {theirs.transform}" if theirs.transform else "as it is"
        else:
            return
        raise ConfigError(
            f"{self._target.name}: the copy that was begun here is {what}; "
            "end that one first, or forget it with --restart"
        )

    def _require_dead(self, found: dict[str, Any]) -> None:
        """
        Wait until it is known that the process of the checkpoint *found* is dead.

        :raises Conflict: it is alive, or has just ended, or the command was stopped meanwhile.
        """
        if found["owner"] is None or _is_gone(found["owner"]):
            return
        until = monotonic() + SILENCE_S
        while monotonic() < until and not self._stopping.wait(BEAT_S / 2):
            now = self._collection.find_one({"_id": self._key})
            if now is None or now["owner"] is None:
                raise Conflict(
                    f"{self._target.name}: another copy into this collection has just ended; "
                    "begin again"
                )
            if now["beat"] != found["beat"] or now["owner"] != found["owner"]:
                raise self._running(found)
        if self._stopping.is_set():
            raise self._running(found)

    def _running(self, found: dict[str, Any]) -> Conflict:
        owner = found["owner"] or {"host": "another host", "pid": "unknown"}
        return Conflict(
            f"{self._target.name}: another copy into this collection is running "
            f"(process {owner['pid']} on {owner['host']})"
        )


def require_not_ours(place: CollectionAddress) -> None:
    """
    Refuse the collection of the checkpoints as a source or a target.

    :raises ConfigError: *place* is that collection.
    """
    if place.collection == COLLECTION:
        raise ConfigError(f"{place}: copies keep their checkpoints here; name another one")


def _is_gone(owner: dict[str, Any]) -> bool:
    """Return whether the process ran on this machine and has ended."""
    if owner["host"] != socket.gethostname():
        return False
    # Signal 0 only checks whether the process exists.
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to another user
        pass
    return False


def _progress_in(found: dict[str, Any]) -> Progress:
    after = found.get("after")
    return Progress(
        after=None if after is None else bytes(after),
        copied=found.get("copied", 0),
        skipped=found.get("skipped", 0),
        failed=found.get("failed", 0),
        token=found.get("token"),
    )
