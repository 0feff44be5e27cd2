"""
Opaque cursors: a place in one order of one resource's list, in letters for a URL.

A cursor names an item by the value that it had in that order and by its id, so that it stays
where it is while others come and go, and even when its item goes. Its checksum tells a garbled one
from a good one; it is no secret, and grants nothing. So a client can make one: what no item could
have had is refused here, before a database does it with an error of its own.
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
    """Return the cursor of an item in the order that *context* names."""
    place = msgspec.json.encode([value, item_id])
    return _letters(_check(context, place) + place)


def edge(context: str) -> str:
    """Return the cursor that no item has: what is before it ends the list, what is after begins."""
    return encode(f"{context} edge", None, 0)


def decode(context: str, text: str, name: str, kind: Any) -> Any:
    """
    Return (value, id), of the types that the tuple *kind* has, of the cursor *text*.

    Raises:
        InvalidRequest: it is garbled, or of another list or order; *name* is its parameter's.
    """
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        check, place = data[:CHECK_BYTES], data[CHECK_BYTES:]
        # Base64 is read with whatever is strewn in it: only what encode() writes is a cursor.
        if check == _check(context, place) and _letters(data) == text:
            value, item_id = msgspec.json.decode(place, type=kind)
            return _possible(value), item_id
    except (Error, ValueError, OverflowError, RecursionError):  # msgspec's are ValueErrors
        pass
    raise InvalidRequest(
        faults=[Fault(f"{name} is no cursor of this list in this order", name=name)]
    )


def _possible(value: Any) -> Any:
    """
    Return *value*, a time in UTC.

    Raises:
        ValueError, OverflowError: no item could have it.
    """
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
