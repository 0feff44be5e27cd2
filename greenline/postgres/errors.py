"""
psycopg2's errors in our words: one table, used at one edge.

SQLSTATEs: https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2

from greenline.errors import (
    Conflict,
    DeadlineExceeded,
    GreenlineError,
    SerializationFailure,
    StoreDown,
    StoreError,
)

CONFLICTS = {
    "23503": "something that this refers to does not exist, or something still refers to it",
    "23505": "this exists already",
    "23514": "a rule of the database forbids this value",
    "23P01": "this overlaps with what exists",
}
# Connection exceptions (08), and: too many connections, an administrator's stop, a crash, a
# server that starts or stops, a standby that took the place of the primary.
DOWN = {"53300", "57P01", "57P02", "57P03", "25006"}
DEADLINE = {"57014"}
# A serialization failure and a deadlock: nothing happened, and the next attempt may do.
SERIALIZATION = {"40001", "40P01"}
# copy_expert() and lobject(), and COPY through execute(): what psycopg2 itself advises is no help.
NOT_GREEN = ("cannot be used with an asynchronous callback", "can't execute COPY")
# What psycopg2 raises when the connection broke, or when what came over it made no sense.
LOST = {psycopg2.OperationalError, psycopg2.InterfaceError, psycopg2.DatabaseError}


# After these no other connection of the pool is any better: a shutdown, a start, a failover.
EVICTS = {"57P01", "57P02", "57P03", "25006"}


@contextmanager
def translated() -> Iterator[None]:
    """Let the block's psycopg2 errors out as ours, the original as ``__cause__``."""
    try:
        yield
    except psycopg2.Error as error:
        raise translate(error) from error


def evicts(error: psycopg2.Error) -> bool:
    """Return whether the other connections to this server are not to be trusted either."""
    return error.pgcode in EVICTS


def translate(error: psycopg2.Error) -> GreenlineError:
    """Return our error for *error*, by its SQLSTATE; without one the connection was lost."""
    state = error.pgcode
    if state in CONFLICTS:
        constraint = error.diag.constraint_name
        return Conflict(f"{CONFLICTS[state]} ({constraint})", constraint=constraint)
    if state in SERIALIZATION:
        return SerializationFailure()
    if state in DEADLINE:
        return DeadlineExceeded()
    if state in DOWN or (state or "").startswith("08"):
        return StoreDown(f"Postgres: {first_line(error)}")
    if is_lost(error):
        return StoreDown(f"Postgres: {first_line(error)}")
    if state is None and any(words in str(error) for words in NOT_GREEN):
        return StoreError(
            "psycopg2 runs no COPY and no large objects in green mode: write with "
            "psycopg2.extras.execute_values, or in a process without the hook"
        )
    return StoreError()


def is_lost(error: BaseException | None) -> bool:
    """Return whether the connection broke, so that nobody knows what the server did."""
    return type(error) in LOST and getattr(error, "pgcode", None) is None


def first_line(error: BaseException) -> str:
    """Return the first line of the error's text: libpq adds advice on further lines."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
