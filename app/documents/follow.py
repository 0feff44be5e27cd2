"""
Apply the source's change stream to the target, from the beginning of the copy on.

The stream's position is taken before the first document is read, so no change is missed. A change
that the copy has already read is applied again, which does not alter the final state.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, ReplaceOne
from pymongo.change_stream import ChangeStream
from pymongo.errors import OperationFailure, PyMongoError

from app.documents import ids
from app.documents.batches import MAX_BYTES
from app.documents.copy import CheckpointSaver
from app.documents.endpoint import CollectionEndpoint, named
from app.documents.failures import Failure
from app.documents.job import Job
from app.documents.refused import refused_elements, target_errors
from app.documents.retry import MIN_BACKOFF_S, NotYet, passes, retrying
from app.documents.throttle import Throttle
from app.documents.transform import TransformRefused
from greenline.errors import ConfigError, StoreError

AWAIT_MS = 500
CHANGES_AT_ONCE = 1_000
HISTORY_LOST = 286
WRITTEN = ("insert", "update", "replace")
# Operations that change no document.
QUIET = ("create", "createIndexes", "dropIndexes", "modify", "shardCollection")

Change = ReplaceOne[RawBSONDocument] | DeleteOne


def position_now(source: CollectionEndpoint) -> Any:
    """
    Return the current position of the change stream of *source*.

    :raises StoreError: the server has no change streams; they need a replica set.
    """
    try:
        with source.collection.watch(max_await_time_ms=AWAIT_MS) as stream:
            if stream.resume_token is None:  # some servers send it with the first answer only
                stream.try_next()
            token = stream.resume_token
    except OperationFailure as error:
        reason = named(source.name, error)
        raise StoreError(f"--follow needs a replica set with change streams: {reason}") from error
    except PyMongoError as error:
        raise named(source.name, error) from error
    if token is None:
        raise StoreError(f"{source.name}: its change stream gives no position to go on from")
    return _plain(token)


class Follower:
    """
    Apply the changes of a job's source to its target, until ``stopping`` is set.

    :param job: the copy.
    :param on_change: called with the number of changes applied so far, int.
    """

    def __init__(self, job: Job, on_change: Callable[[int], None]) -> None:
        self._job = job
        self._source = job.source
        self._target = job.target
        self._checkpoint = job.checkpoint
        self._recipe = job.recipe
        self._throttle = Throttle(job.limits.max_rate, job.stopping)
        self._on_change = on_change
        self._stopping = job.stopping
        self._retry = retrying(job.stopping, self._throttle.pause)
        self._applied = 0

    def run(self) -> None:
        """
        Apply the changes.

        :raises GreenlineError: a server is unreachable for too long or refuses, the server no
            longer has the changes since the position, or the collection was dropped or renamed.
        """
        with CheckpointSaver(
            self._checkpoint, lambda _: self._on_change(self._applied), self._stopping
        ):
            while not self._stopping.is_set():
                try:
                    self._retry(self._follow)
                except PyMongoError as error:
                    raise named(self._source.name, error) from error

    def _follow(self) -> None:
        """Open the stream at the checkpoint, and apply its changes until the end or an error."""
        has_read = False
        try:
            with self._source.collection.watch(
                resume_after=self._checkpoint.progress.token,
                full_document="updateLookup",
                max_await_time_ms=AWAIT_MS,
            ) as stream:
                while not self._stopping.is_set():
                    changes = self._changes(stream)
                    has_read = True
                    self._apply(changes)
                    # After the changes are applied: a killed process applies some of them again.
                    token = _plain(stream.resume_token)
                    self._checkpoint.progress = replace(self._checkpoint.progress, token=token)
        except PyMongoError as error:
            # Transient: run() opens the stream again at the checkpoint. An outage begins with the
            # last change that could be read, however long the stream was open before.
            if passes(error) and has_read:
                self._throttle.pause(MIN_BACKOFF_S)
                self._stopping.wait(MIN_BACKOFF_S)
                return
            if passes(error):
                raise
            if getattr(error, "code", None) == HISTORY_LOST:
                raise StoreError(
                    f"{self._source.name}: the server no longer has the changes since the copy "
                    "began; start again with --restart"
                ) from error
            raise named(self._source.name, error) from error

    def _changes(self, stream: "ChangeStream[Any]") -> list[Any]:
        """Return the available changes; an empty list after ``AWAIT_MS`` without any."""
        changes: list[Any] = []
        # Bounded by number and by size: a change may have a document of 16 MB.
        size_bytes = 0
        while len(changes) < CHANGES_AT_ONCE and size_bytes < MAX_BYTES:
            change = stream.try_next()
            if change is None:
                break
            changes.append(change)
            size_bytes += len(change.raw)
        return changes

    def _apply(self, changes: list[Any]) -> None:
        written: list[Change] = []
        documents: list[bytes] = []
        for change in changes:
            made = self._made(change)
            if made is not None:
                written.append(made[0])
                documents.append(made[1])
        if written:
            self._throttle.wait(len(written))
            with target_errors(self._target):
                self._write(written, documents)
        self._applied += len(changes)

    def _made(self, change: Any) -> tuple[Change, bytes] | None:
        """
        Return the write that applies *change*, and a document for the file of failures.

        :returns: None if there is nothing to do. The document of a delete has only its key.
        """
        kind = change["operationType"]
        if kind not in (*WRITTEN, "delete"):
            if kind in QUIET:
                return None
            raise StoreError(
                f"{self._source.name}: the collection is gone ({kind}); begin again with --restart"
            )
        named_by = bytes(change["documentKey"].raw)
        key = ids.id_of(named_by) or b""
        # The target's _id follows from the source's, so a delete needs no lookup.
        there = {"_id": ids.value_of(self._recipe.new_id(key))}
        if kind == "delete":
            return DeleteOne(there), named_by
        if change.get("fullDocument") is None:
            return None  # deleted since; its delete follows in the stream
        document = bytes(change["fullDocument"].raw)
        try:
            made = self._recipe.one(document)
        except TransformRefused as error:
            self._fail(Failure(document, str(error)))
            return None
        # The transform now leaves it out; an earlier version of it may be in the target.
        if made is None:
            return DeleteOne(there), document
        return ReplaceOne(there, RawBSONDocument(made), upsert=True), document

    def _write(self, written: list[Change], documents: list[bytes]) -> None:
        """Write the changes in order; a refused document is a failure and does not end the loop."""
        # In order, because two changes may be of one document.
        begin = 0
        while begin < len(written):
            begin += self._retry(self._write_some, written[begin:], documents[begin:])

    def _write_some(self, written: list[Change], documents: list[bytes]) -> int:
        """
        Write up to the first change that is refused; return the number of changes done.

        :raises NotYet: none is done, and the first one may succeed later.
        """
        write = self._target.collection.bulk_write
        refused = refused_elements(self._target, write, written, in_order=True)
        if not refused:
            return len(written)
        first = refused[0]
        if not first.passes:
            is_delete = isinstance(written[first.index], DeleteOne)
            reason = f"its delete is refused: {first.reason}" if is_delete else first.reason
            self._fail(Failure(documents[first.index], reason))
            return first.index + 1
        # Progress is returned first, so that the time for attempts begins anew with each change.
        if first.index == 0:
            raise NotYet(first.reason)
        return first.index

    def _fail(self, failure: Failure) -> None:
        """
        Write a failed document to the file of failures.

        :raises StoreError: there are more than allowed.
        """
        self._job.failures.write([failure])
        done = self._checkpoint.progress
        self._checkpoint.progress = replace(done, failed=done.failed + 1)
        self._job.require_few(done.failed + 1, failure)


def require_position(token: Any) -> None:
    """
    Refuse to follow after a copy that was begun without ``--follow``.

    :param token: of the checkpoint.
    :raises ConfigError: the copy stored no position.
    """
    if token is None:
        raise ConfigError(
            "the copy was begun without --follow: the changes since then are unknown; "
            "continue without --follow, or start again with --restart"
        )


def _plain(token: Any) -> Any:
    """Return a resume token as a dict, which can be stored."""
    return bson.decode(token.raw) if isinstance(token, RawBSONDocument) else token
