"""
Read the change stream of a MongoDB database, and write it for all processes of the host into a
:class:`~greenline.cache.feed.Feed`.

A change of a document invalidates the key "COLLECTION ID" and the tag "COLLECTION"; where a whole
collection changes, the tag "COLLECTION items" as well.

A change stream shows what the majority of the members has, so it proves nothing of a write that the
primary alone has. ``hello`` names the last write of the primary and the last one of the majority:
once the latter has come to what the former was, and the stream has been read to its end after that,
all that was written before the question has been read.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import gevent
from pymongo import MongoClient, ReadPreference
from pymongo.change_stream import DatabaseChangeStream
from pymongo.errors import OperationFailure, PyMongoError

from greenline.cache.feed import Feed
from greenline.cache.leader import Leader
from greenline.errors import DeadlineExceeded, GreenlineError, PoolTimeout
from greenline.hub import deadline
from greenline.mongo.client import Mongo
from greenline.mongo.retry import Document

log = logging.getLogger(__name__)

POLL_S = 0.05
HEARTBEAT_S, ANSWER_S = 0.25, 2.0
UNSUPPORTED_RETRY_S = 30.0
MAX_READ_S = 0.05  # then what was read is published, and more is read in the next step
MAX_TAGS = 500  # of a step; beyond it everything is invalid
EVERYTHING = ""
# Only what names the document: the stream of a database has all of its writes.
FIELDS = [{"$project": {"operationType": 1, "ns": 1, "documentKey": 1}}]
OF_A_DOCUMENT = frozenset({"insert", "update", "replace", "delete"})


class _NotAnnounced(Exception):
    """The server has no change streams, or does not say what its majority has."""


class Changes(Leader):
    """
    Read the changes, once started, as long as no other process of the host does.

    :param mongo: lends the database.
    :param feed: of the database.
    """

    def __init__(self, mongo: Mongo, feed: Feed) -> None:
        super().__init__(feed)
        self._mongo = mongo
        self._stream: DatabaseChangeStream[Document] | None = None
        self._client: MongoClient[Document] | None = None  # of the stream
        self._primary: Any = None  # its election
        self._asked: tuple[float, Any] | None = None  # when, and the primary's last write then
        self._is_past = False  # the majority has that write
        self._heartbeat_s = 0.0

    def step(self) -> None:
        """Read what has changed, and wait for more."""
        try:
            with deadline.limit(ANSWER_S):
                self._read()
        except (PoolTimeout, DeadlineExceeded):
            if self._stream is None:
                raise  # another process may get a connection
            self._asked = None  # requests have all connections; the stream can be read on
        except _NotAnnounced as error:
            self.forget(is_lost=False)
            self.go_without(str(error))
            gevent.sleep(UNSUPPORTED_RETRY_S)
        gevent.sleep(POLL_S)

    def forget(self, *, is_lost: bool = True) -> None:
        """Close the stream; what changes until another one is read is lost."""
        stream, self._stream, self._asked = self._stream, None, None
        if stream is not None:
            self.feed.interrupt()
            self.feed.publish_everything()
            if is_lost:
                log.warning("the change stream of MongoDB was lost: caches are emptied")
            # It asks the server, which may be away.
            with suppress(GreenlineError, PyMongoError), deadline.limit(ANSWER_S):
                stream.close()

    def _read(self) -> None:
        with self._mongo.database() as lent:
            database = lent.with_options(read_preference=ReadPreference.PRIMARY)
            if self._stream is None:
                self._ask(database)
                self._stream, self._client = _watch(database), database.client
                # What was changed before is lost.
                self.feed.publish_everything()
                self.feed.resume()
            elif self._client is not database.client:
                # The client was exchanged for a larger one, and is closed.
                position, self._client = self._stream.resume_token, database.client
                self._stream = _watch(database, position)
            if monotonic() - self._heartbeat_s >= HEARTBEAT_S:
                self._ask(database)
            is_read = self._publish(self._stream)
        if not self._stream.alive:  # the database was dropped
            self.forget()
        # The stream has been read to its end since the majority was asked.
        if is_read and self._asked is not None and self._is_past:
            self.feed.confirm(self._asked[0])
            self.go_on()
            self._asked = None

    def _publish(self, stream: "DatabaseChangeStream[Document]") -> bool:
        """Publish what has changed, in its order; return whether it was read to its end."""
        found: dict[str, None] = {}
        until_s = monotonic() + MAX_READ_S
        try:
            while (change := stream.try_next()) is not None:
                found |= dict.fromkeys(_tags(change))
                if monotonic() > until_s:
                    return False
            return True
        finally:
            # Also after an error: the stream does not return these changes again.
            self.feed.publish(found if len(found) <= MAX_TAGS else [EVERYTHING])

    def _ask(self, database: Any) -> None:
        """Ask the primary which write is its last, and which one is the majority's last."""
        self._heartbeat_s = asked_s = monotonic()
        hello = database.command("hello")
        last, primary = hello.get("lastWrite"), (hello.get("me"), hello.get("electionId"))
        if last is None:
            raise _NotAnnounced("MongoDB does not say what the majority of its members has")
        if primary != self._primary:
            # What the former one has rolled back, no change stream shows.
            self.feed.publish_everything()
            self._primary, self._asked = primary, None
        if self._asked is None:
            self._asked = asked_s, _time(last["opTime"])
        self._is_past = _time(last["majorityOpTime"]) >= self._asked[1]


def _watch(database: Any, resume_after: Any = None) -> "DatabaseChangeStream[Document]":
    """Return the change stream of *database*, from the position *resume_after* on."""
    try:
        return database.watch(  # type: ignore[no-any-return]
            FIELDS, max_await_time_ms=1, resume_after=resume_after
        )
    except OperationFailure as error:
        # A position that is too old is an error; a new stream begins without one.
        if error.timeout or resume_after is not None:
            raise
        raise _NotAnnounced(f"MongoDB has no change stream for us: {error}") from error


def _tags(change: Mapping[str, Any]) -> list[str]:
    name, kind = change.get("ns", {}).get("coll"), change["operationType"]
    if kind in OF_A_DOCUMENT:
        return [f"{name} {change['documentKey']['_id']}", name]
    return [f"{name} items", name] if kind == "drop" else [EVERYTHING]


def _time(written: Any) -> Any:
    """Return the Timestamp of an opTime."""
    return written["ts"] if isinstance(written, Mapping) else written
