"""
Opaque cursors: a position in one order of one resource's list, as text for a URL.

A cursor holds an item's value in that order and its id, so it stays valid while items are added
and deleted, including its own. The checksum detects damage; it is not a signature and grants
nothing.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import msgspec

from app.errors import Fault, InvalidRequest

CHECK_BYTES = 4


def encode(context: str, value: Any, item_id: int | str) -> str:
    """
    Return the cursor of an item.

    :param context: names the resource and the order with its sign, str.
    :param value: the item's value in that order.
    :param item_id: the item's id.
    """
    place = msgspec.json.encode([value, item_id])
    return _letters(_check(context, place) + place)


def edge(context: str) -> str:
    """
    Return the cursor of the list's edge, which no item has.

    ``before`` it is the last page, ``after`` it the first.
    """
    return encode(f"{context} edge", None, 0)


def decode(context: str, text: str, name: str, kind: Any) -> Any:
    """
    Return the value and the id that a cursor holds.

    :param context: as given to :func:`encode`.
    :param text: the cursor.
    :param name: of the query parameter, for the error.
    :param kind: the type of the pair, a ``tuple[...]``.
    :raises InvalidRequest: the cursor is damaged, or of another list or order.
    """
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        check, place = data[:CHECK_BYTES], data[CHECK_BYTES:]
        # Python's base64 decoder skips foreign characters, so the text is compared as well: one
        # position has exactly one cursor. The checksum covers the context.
        if check == _check(context, place) and _letters(data) == text:
            value, item_id = msgspec.json.decode(place, type=kind)
            return _possible(value), item_id
    except (Error, ValueError, OverflowError, RecursionError):  # msgspec's errors are ValueErrors
        pass
    raise InvalidRequest(
        faults=[Fault(f"{name} is no cursor of this list in this order", name=name)]
    )


def _possible(value: Any) -> Any:
    """
    Return *value*, with a time in UTC.

    :raises ValueError: no item can have it.
    :raises OverflowError: as a time in UTC it is beyond Python's years.
    """
    # A client can make a cursor with a valid checksum. A value that the database cannot compare
    # would be an error of the database, and 500.
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError
        return value.astimezone(UTC)
    if isinstance(value, str) and "\0" in value:
        raise ValueError
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError
    return value


def _letters(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _check(context: str, place: bytes) -> bytes:
    return crc32(place, crc32(context.encode())).to_bytes(CHECK_BYTES, "big")
