"""pymongo's errors in our words: one table, used at one edge."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    DuplicateKeyError,
    ExecutionTimeout,
    OperationFailure,
    ProtocolError,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from greenline import deadline
from greenline.errors import (
    Conflict,
    DeadlineExceeded,
    GreenlineError,
    OutcomeUnknown,
    PoolClosed,
    PoolTimeout,
    StoreDown,
    StoreError,
)
from greenline.mongo.driver import WRITE_SENT

# The server is stopping, was stopped, or is no primary any more.
DOWN_CODES = {91, 189, 10107, 11600, 11602, 13435, 13436}
DUPLICATE_KEY = 11000

# FerretDB on SQLite tells a duplicate key as such when inserting, but not when updating.
FERRETDB_DUPLICATE = "UNIQUE constraint failed"
# FerretDB's answer when it gives a command up, as it is stopping; the code is any internal error's.
FERRETDB_CANCELED = "context canceled"


# What pymongo says, in two classes of its own, to those who are at work while a client closes.
CLOSED = re.compile("after close|closed connection pool")


@contextmanager
def translated(*, repeatable: bool = True) -> Iterator[None]:
    """Let the block's pymongo errors out as ours, the original as ``__cause__``."""
    try:
        yield
    except PyMongoError as error:
        raise translate(error, repeatable=repeatable) from error


def translate(error: PyMongoError, *, repeatable: bool = True) -> GreenlineError:
    """
    Return our error for *error*, by its class, then by the server's code.

    A write that must not be done twice, was sent and not answered is neither an outage nor just
    late, whichever the driver noticed: either would say that the same may be asked again.
    """
    if not repeatable and error.has_error_label(WRITE_SENT):
        return OutcomeUnknown()
    if (duplicate := _find_duplicate(error)) is not None:
        # The fields of the violated index: mongod names them, other servers may not.
        key = ", ".join(duplicate.get("keyPattern") or ()) or None
        return Conflict(f"this exists already{f' ({key})' if key else ''}", constraint=key)
    if FERRETDB_DUPLICATE in str(error):
        return Conflict("this exists already")
    if isinstance(error, DocumentTooLarge):
        return Conflict("with this the document is larger than MongoDB stores one")
    if isinstance(error, WaitQueueTimeoutError):
        return PoolTimeout("no MongoDB connection became free in time")
    if isinstance(error, ExecutionTimeout) or _was_slow(error):
        return DeadlineExceeded("MongoDB did not answer before the deadline")
    if not isinstance(error, OperationFailure) and CLOSED.search(str(error)):
        return PoolClosed("the MongoDB client is closed")
    # A name that does not resolve is a ConfigurationError: pymongo resolves when it connects.
    if isinstance(error, ConnectionFailure | ProtocolError | ConfigurationError):
        return StoreDown(f"MongoDB: {first_sentence(error)}")
    if getattr(error, "code", None) in DOWN_CODES or _was_canceled(error):
        return StoreDown(f"MongoDB: {first_sentence(error)}")
    return StoreError()


def first_sentence(error: BaseException) -> str:
    """Return the error's text without the topology that pymongo appends."""
    return re.split(r",? ?(?:Timeout: |Topology Description|full error)", str(error))[0].strip(
        " (,"
    )


def _was_slow(error: PyMongoError) -> bool:
    """Return whether the deadline passed while a server was there: without one it is an outage."""
    late = error.timeout and deadline.remaining() == 0
    return late and not isinstance(error, ServerSelectionTimeoutError)


def _was_canceled(error: PyMongoError) -> bool:
    """Return whether FerretDB gave the command up; what the documents say does not count."""
    if not isinstance(error, OperationFailure):
        return False
    details = error.details or {"errmsg": error}
    answers = (details, *details.get("writeErrors", ()))
    return any(FERRETDB_CANCELED in str(one.get("errmsg")) for one in answers)


def _find_duplicate(error: PyMongoError) -> Mapping[str, Any] | None:
    """Return what the server says of a duplicate key, the first one if there are several."""
    if isinstance(error, DuplicateKeyError):
        return error.details or {}
    if isinstance(error, BulkWriteError):
        refused: list[Mapping[str, Any]] = error.details.get("writeErrors", [])
        return next((one for one in refused if one.get("code") == DUPLICATE_KEY), None)
    return None
