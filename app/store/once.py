"""
Writes that happen once, in Postgres: the answer is kept with the write, in its transaction.

1. A duplicate of a request in progress is refused, by an advisory lock of the transaction: it
   never waits, and a process that dies leaves no lock and no answer.
2. An answer is kept for a day.
"""

import msgspec
from psycopg2.extensions import cursor as Cursor

from app.errors import KeyInProgress, KeyReused
from app.store.ports import Once, Stored
from app.store.queries import read

_LOCK = read("once/lock")
_FIND = read("once/find")
_KEEP = read("once/keep")


def first_answer(cursor: Cursor, once: Once) -> list[Stored] | None:
    """
    Return what the first call answered; None when this is the first.

    Raises:
        KeyInProgress: the first is still at work.
        KeyReused: the first sent something else.
    """
    cursor.execute(_LOCK, {"key": once.key})
    is_locked = cursor.fetchone() == (True,)
    # Also without the lock: its owner may be another duplicate of a request that is done.
    cursor.execute(_FIND, {"key": once.key})
    row = cursor.fetchone()
    if row is None:
        if not is_locked:
            raise KeyInProgress
        return None
    request, answer = row
    if bytes(request) != once.request:
        raise KeyReused
    return [
        Stored(item_id, version, json.encode())
        for item_id, version, json in msgspec.json.decode(answer, type=list[tuple[int, int, str]])
    ]


def remember(cursor: Cursor, once: Once, answer: list[Stored]) -> None:
    """Keep *answer* for those who send the same again, and forget some that are a day old."""
    kept = msgspec.json.encode([(item.id, item.version, item.json.decode()) for item in answer])
    cursor.execute(_KEEP, {"key": once.key, "request": once.request, "answer": kept.decode()})
