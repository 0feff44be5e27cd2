"""
How far a copy is, in a document beside its target: what a copy that was killed goes on from.

It says up to which ``_id`` every document is written, and which process copies. A second copy
into the same target is refused while the first one lives. Its life shows in a number that grows
every second; a process that is gone from this machine is dead at once.
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

from app.documents.endpoint import CollectionEndpoint, Place
from app.documents.retry import retrying
from greenline.errors import ConfigError, Conflict

COLLECTION = "greenline_copies"
BEAT_S = 1.0
# A copy that shows no life for so long is dead, if it cannot be asked. Its beats may be late: a
# copy that was only slow notices at its next one that another has taken over, and stops.
SILENCE_S = 15.0


@dataclass(frozen=True)
class Progress:
    """
    What is done: replaced as a whole, so that what is saved belongs together.

    :param after: element of the ``_id`` up to which every document is written; None at first.
    :param copied: documents in the target, int.
    :param skipped: documents that the transform left out, int.
    :param failed: documents in the file of those that failed, int.
    :param token: where the source's change stream goes on, as its server gave it.
    """

    after: bytes | None = None
    copied: int = 0
    skipped: int = 0
    failed: int = 0
    token: Any = None


@dataclass(frozen=True)
class Terms:
    """What must be the same when a copy goes on: else half of it would be something else."""

    source: str
    new_ids: bool
    transform: str | None


class Checkpoint:
    """The checkpoint of the one copy into *target*."""

    def __init__(self, target: CollectionEndpoint, terms: Terms, stopping: Event) -> None:
        self._target = target
        self._terms = terms
        self._stopping = stopping
        self._collection = target.beside(COLLECTION)
        self._key = target.collection.name
        self._token = uuid4().hex
        self._retry = retrying(stopping)
        self.progress = Progress()

    @property
    def owner(self) -> dict[str, Any]:
        """What the document says of this process."""
        return {"token": self._token, "host": socket.gethostname(), "pid": os.getpid()}

    def claim(self, *, restart: bool) -> bool:
        """
        Make the checkpoint, or take over that of a copy that ended before its end.

        :param restart: forget how far that one was.
        :returns: whether this copy goes on where another one ended.
        :raises Conflict: another copy into this target is running.
        :raises ConfigError: the copy that ended early was of something else.
        """
        with self._target.errors():
            try:
                self._retry(self._collection.insert_one, self._first())
            except DuplicateKeyError:
                return self._take_over(restart)
        return False

    def start(self, token: Any) -> None:
        """Keep where the source's change stream is before the first document is read."""
        self.progress = replace(self.progress, token=token)
        self.save()

    def save(self) -> None:
        """
        Write the progress, and that this process lives.

        :raises Conflict: another process has taken over.
        """
        self._change({"$set": self._state(), "$inc": {"beat": 1}})

    def release(self) -> None:
        """Write the progress; the next copy need not wait whether this process lives."""
        self._change({"$set": {**self._state(), "owner": None}})

    def remove(self) -> None:
        """Delete the checkpoint: all is done."""
        with self._target.errors():
            self._retry(self._collection.delete_one, self._mine())

    def is_seen_by(self, other: CollectionEndpoint) -> bool:
        """Return whether *other* is a collection of the same database of the same server."""
        with other.errors():
            return other.beside(COLLECTION).find_one(self._mine()) is not None

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
            changed = self._retry(self._collection.update_one, self._mine(), change)
        if not changed.matched_count:
            raise Conflict(f"{self._target.name}: another process has taken this copy over")

    def _take_over(self, restart: bool) -> bool:
        found = self._collection.find_one({"_id": self._key})
        if found is None:  # it was removed just now
            return self.claim(restart=restart)
        if found["owner"] == self.owner:  # made by an attempt whose answer was lost
            return False
        if not restart:
            self._require_same(found)
        self._require_dead(found)
        # Another process may do the same at this moment: one of them changes what both have read.
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
        """Wait until it is clear whether the copy of *found* lives; refuse if it does."""
        if found["owner"] is None or _is_gone(found["owner"]):
            return
        until = monotonic() + SILENCE_S
        while monotonic() < until and not self._stopping.wait(BEAT_S / 2):
            now = self._collection.find_one({"_id": self._key})
            if now is None or now["beat"] != found["beat"] or now["owner"] != found["owner"]:
                raise self._running(found)
        if self._stopping.is_set():
            raise self._running(found)

    def _running(self, found: dict[str, Any]) -> Conflict:
        owner = found["owner"] or {"host": "another host", "pid": "unknown"}
        return Conflict(
            f"{self._target.name}: another copy into this collection is running "
            f"(process {owner['pid']} on {owner['host']})"
        )


def require_not_ours(place: Place) -> None:
    """
    Refuse to copy the checkpoints, or to copy between them.

    :raises ConfigError: *place* is their collection.
    """
    if place.collection == COLLECTION:
        raise ConfigError(f"{place}: copies keep their checkpoints here; name another one")


def _is_gone(owner: dict[str, Any]) -> bool:
    """Return whether the process was one of this machine, and is no more."""
    if owner["host"] != socket.gethostname():
        return False
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
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
