"""Translate pymongo's errors into those of :mod:`greenline.errors`."""

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

# The server is stopping, was stopped, or is no longer the primary.
DOWN_CODES = {91, 189, 10107, 11600, 11602, 13435, 13436}
# The cursor of a read was lost or killed, for example by a restart of the server.
CURSOR_CODES = {43, 237}
DUPLICATE_KEY = 11000
# Wrong credentials (18) make a server unusable, so they count as an outage.
OUTAGE_CODES = DOWN_CODES | CURSOR_CODES | {18}
# FerretDB's answer to what it cancels as it stops; its code is that of any internal error.
FERRETDB_CANCELED = "context canceled"

# The texts of pymongo's two errors for an operation that runs while its client is closed.
CLOSED = re.compile("after close|closed connection pool")
ENDING = re.compile(r"Timeout: |Topology Description|\(configured timeouts|full error")


@contextmanager
def translated(*, repeatable: bool = True) -> Iterator[None]:
    """
    Translate the pymongo errors of a ``with`` block; the original is the ``__cause__``.

    :param repeatable: see :func:`translate`, bool, default True.
    :raises GreenlineError: for any pymongo error.
    """
    try:
        yield
    except PyMongoError as error:
        raise translate(error, repeatable=repeatable) from error


def translate(error: PyMongoError, *, repeatable: bool = True) -> GreenlineError:
    """
    Return the Greenline error for *error*, by its class, then by the server's code.

    :param error: pymongo's error.
    :param repeatable: the operation may be done twice, bool, default True.
    """
    # First: an outage or a timeout would say that the operation may be repeated.
    if not repeatable and error.has_error_label(WRITE_SENT):
        return OutcomeUnknown()
    if (duplicate := _find_duplicate(error)) is not None:
        # The fields of the violated index: mongod sends them, other servers may not.
        key = ", ".join(duplicate.get("keyPattern") or ()) or None
        return Conflict(f"this exists already{f' ({key})' if key else ''}", constraint=key)
    if isinstance(error, DocumentTooLarge):
        return Conflict("with this the document is larger than MongoDB stores one")
    if isinstance(error, WaitQueueTimeoutError):
        return PoolTimeout("no MongoDB connection became free in time")
    if isinstance(error, ExecutionTimeout) or _was_slow(error):
        return DeadlineExceeded("MongoDB did not answer before the deadline")
    # The text of an OperationFailure is the server's, which may contain anything.
    if not isinstance(error, OperationFailure) and CLOSED.search(str(error)):
        return PoolClosed("the MongoDB client is closed")
    # An unresolvable host name is a ConfigurationError, as pymongo resolves it at the connect.
    if isinstance(error, ConnectionFailure | ProtocolError | ConfigurationError):
        return StoreDown(f"MongoDB: {first_sentence(error)}")
    if getattr(error, "code", None) in OUTAGE_CODES or _was_canceled(error):
        return StoreDown(f"MongoDB: {first_sentence(error)}")
    return StoreError(f"MongoDB: {first_sentence(error)}")


def first_sentence(error: BaseException) -> str:
    """Return the error's text without the appended topology, timeouts and raw answer."""
    return ENDING.split(str(error))[0].strip(" (,")


def _was_slow(error: PyMongoError) -> bool:
    """Return whether the deadline passed while a server was reachable."""
    # A failed server selection is an outage, although its error is marked as a timeout, too.
    late = error.timeout and deadline.remaining() == 0
    return late and not isinstance(error, ServerSelectionTimeoutError)


def _was_canceled(error: PyMongoError) -> bool:
    """Return whether a FerretDB that stops has canceled the command."""
    if not isinstance(error, OperationFailure):
        return False
    # The server's messages alone: a refused write is repeated there, with any text in it.
    details = error.details or {"errmsg": error}
    answers = (details, *details.get("writeErrors", ()))
    return any(FERRETDB_CANCELED in str(one.get("errmsg")) for one in answers)


def _find_duplicate(error: PyMongoError) -> Mapping[str, Any] | None:
    """Return the server's details of the first duplicate key, None if there is none."""
    if isinstance(error, DuplicateKeyError):
        return error.details or {}
    if isinstance(error, BulkWriteError):
        refused: list[Mapping[str, Any]] = error.details.get("writeErrors", [])
        return next((one for one in refused if one.get("code") == DUPLICATE_KEY), None)
    return None
