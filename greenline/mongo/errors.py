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
from greenline.hub import deadline
from greenline.mongo.driver import WRITE_SENT

# The server is stopping, was stopped, or is no primary any more.
DOWN_CODES = {91, 189, 10107, 11600, 11602, 13435, 13436}
# The server has forgotten or killed the cursor of a read, as when it was restarted.
CURSOR_CODES = {43, 237}
DUPLICATE_KEY = 11000
# With wrong credentials (18) the server is as good as away.
OUTAGE_CODES = DOWN_CODES | CURSOR_CODES | {18}

# What pymongo says, in two classes of its own, to those who are at work while a client closes.
CLOSED = re.compile("after close|closed connection pool")
ENDING = re.compile(r"Timeout: |Topology Description|\(configured timeouts|full error")


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
    if getattr(error, "code", None) in OUTAGE_CODES:
        return StoreDown(f"MongoDB: {first_sentence(error)}")
    return StoreError(f"MongoDB: {first_sentence(error)}")


def first_sentence(error: BaseException) -> str:
    """Return the error's text without what pymongo appends: topology, timeouts, raw answer."""
    return ENDING.split(str(error))[0].strip(" (,")


def _was_slow(error: PyMongoError) -> bool:
    """Return whether the deadline passed while a server was there: without one it is an outage."""
    late = error.timeout and deadline.remaining() == 0
    return late and not isinstance(error, ServerSelectionTimeoutError)


def _find_duplicate(error: PyMongoError) -> Mapping[str, Any] | None:
    """Return what the server says of a duplicate key, the first one if there are several."""
    if isinstance(error, DuplicateKeyError):
        return error.details or {}
    if isinstance(error, BulkWriteError):
        refused: list[Mapping[str, Any]] = error.details.get("writeErrors", [])
        return next((one for one in refused if one.get("code") == DUPLICATE_KEY), None)
    return None
