"""
Idempotent writes in Postgres: the answer is stored for a day, in the transaction of the write.

An advisory lock of the transaction refuses a duplicate of a request in progress.
"""

import msgspec

from app.errors import IdempotencyKeyInProgress, IdempotencyKeyReused
from app.store.ports import Idempotency, Stored, Transaction
from app.store.queries import read

_LOCK = read("idempotency/lock")
_FIND_RESPONSE = read("idempotency/find")
_KEEP = read("idempotency/keep")


def first_answer(transaction: Transaction, idempotency: Idempotency) -> list[Stored] | None:
    """
    Return the answer of the first request with this key; None if this is the first.

    :param transaction: of the write.
    :param idempotency: the key, and a hash of the request.
    :raises IdempotencyKeyInProgress: the first request is not finished.
    :raises IdempotencyKeyReused: the first request was another one.
    """
    # Tried, not waited for: a duplicate must not hold a connection. The lock ends with the
    # transaction, also when the process dies.
    is_locked = transaction.execute(_LOCK, {"key": idempotency.key}) == [(True,)]
    # Read even without the lock: its owner may be another duplicate of a finished request.
    rows = transaction.execute(_FIND_RESPONSE, {"key": idempotency.key})
    if not rows:
        if not is_locked:
            raise IdempotencyKeyInProgress
        return None
    request, answer = rows[0]
    if bytes(request) != idempotency.request:
        raise IdempotencyKeyReused
    return [
        Stored(item_id, version, json.encode())
        for item_id, version, json in msgspec.json.decode(answer, type=list[tuple[int, int, str]])
    ]


def remember(transaction: Transaction, idempotency: Idempotency, answer: list[Stored]) -> None:
    """
    Store the answer for repeated requests, and delete a few that are a day old.

    :param transaction: of the write.
    :param idempotency: the key, and a hash of the request.
    :param answer: the items as stored.
    """
    kept = msgspec.json.encode([(item.id, item.version, item.json.decode()) for item in answer])
    transaction.execute(
        _KEEP, {"key": idempotency.key, "request": idempotency.request, "answer": kept.decode()}
    )
