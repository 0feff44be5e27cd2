"""
Translate psycopg2's errors into greenline's, from one table, at one edge.

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
# Besides class 08, connection exceptions: too many connections, an administrator's stop, a crash, a
# server that starts or stops, a standby that took the place of the primary.
DOWN = {"53300", "57P01", "57P02", "57P03", "25006"}
DEADLINE = {"57014"}
# A serialization failure and a deadlock: rolled back, and a further attempt may succeed.
SERIALIZATION = {"40001", "40P01"}
# Texts for copy_expert() and lobject(), and for COPY through execute(). psycopg2's own advice in
# them does not apply.
NOT_GREEN = ("cannot be used with an asynchronous callback", "can't execute COPY")
# The exact classes of psycopg2's errors for a lost connection or an invalid answer; their
# subclasses have an SQLSTATE.
LOST = {psycopg2.OperationalError, psycopg2.InterfaceError, psycopg2.DatabaseError}


# After these the other connections of the pool are unusable, too: a shutdown, a start, a failover.
EVICTS = {"57P01", "57P02", "57P03", "25006"}


@contextmanager
def translated() -> Iterator[None]:
    """Raise psycopg2's errors in the block as greenline's, with the original as ``__cause__``."""
    try:
        yield
    except psycopg2.Error as error:
        raise translate(error) from error


def evicts(error: psycopg2.Error) -> bool:
    """Return whether the other connections to the server cannot be used after *error*, either."""
    return error.pgcode in EVICTS


def translate(error: psycopg2.Error) -> GreenlineError:
    """Return the error for *error*, by its SQLSTATE; without one the connection was lost."""
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
    # Raised by psycopg2 itself: without an SQLSTATE, and always in English.
    if state is None and any(words in str(error) for words in NOT_GREEN):
        return StoreError(
            "psycopg2 runs no COPY and no large objects in green mode: write with "
            "psycopg2.extras.execute_values, or in a process without the hook"
        )
    return StoreError()


def is_lost(error: BaseException | None) -> bool:
    """Return whether the connection broke, so that the outcome at the server is unknown."""
    return type(error) in LOST and getattr(error, "pgcode", None) is None


def first_line(error: BaseException) -> str:
    """Return the first line of the error's text; libpq adds advice on further lines."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
