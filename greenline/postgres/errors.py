"""
psycopg2's errors in our words: one table, used at one edge.

SQLSTATEs: https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2

from greenline.errors import Conflict, DeadlineExceeded, GreenlineError, StoreDown, StoreError

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
# What psycopg2 raises when the connection broke, or when what came over it made no sense.
LOST = {psycopg2.OperationalError, psycopg2.InterfaceError, psycopg2.DatabaseError}


@contextmanager
def translated() -> Iterator[None]:
    """Let the block's psycopg2 errors out as ours, the original as ``__cause__``."""
    try:
        yield
    except psycopg2.Error as error:
        raise translate(error) from error


def translate(error: psycopg2.Error) -> GreenlineError:
    """Return our error for *error*, by its SQLSTATE; without one the connection was lost."""
    state = error.pgcode
    if state in CONFLICTS:
        constraint = error.diag.constraint_name
        return Conflict(f"{CONFLICTS[state]} ({constraint})", constraint=constraint)
    if state in DEADLINE:
        return DeadlineExceeded()
    if state in DOWN or (state or "").startswith("08"):
        return StoreDown(f"Postgres: {first_line(error)}")
    if state is None and type(error) in LOST:
        return StoreDown(f"Postgres: {first_line(error)}")
    return StoreError()


def first_line(error: BaseException) -> str:
    """Return the first line of the error's text: libpq adds advice on further lines."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
