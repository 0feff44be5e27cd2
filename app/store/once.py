"""
Idempotent writes in Postgres: the answer is stored for a day, in the transaction of the write.

An advisory lock of the transaction refuses a duplicate of a request in progress.
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
    Return the answer of the first request with this key; None if this is the first.

    :param cursor: in the transaction of the write.
    :param once: the key, and a hash of the request.
    :raises KeyInProgress: the first request is not finished.
    :raises KeyReused: the first request was another one.
    """
    # Tried, not waited for: a duplicate must not hold a connection. The lock ends with the
    # transaction, also when the process dies.
    cursor.execute(_LOCK, {"key": once.key})
    is_locked = cursor.fetchone() == (True,)
    # Read even without the lock: its owner may be another duplicate of a finished request.
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
    """
    Store the answer for repeated requests, and delete a few that are a day old.

    :param cursor: in the transaction of the write.
    :param once: the key, and a hash of the request.
    :param answer: the items as stored.
    """
    kept = msgspec.json.encode([(item.id, item.version, item.json.decode()) for item in answer])
    cursor.execute(_KEEP, {"key": once.key, "request": once.request, "answer": kept.decode()})
