"""
Read the ``_id`` of a raw BSON document without decoding the document, and derive new ``_id``s.

An ``_id`` is represented by its element (type, name and value in BSON), because two values that
compare equal in Python may identify two documents in MongoDB.
"""

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

NAME = b"_id"
OBJECT_ID = b"\x07_id\0"
# The size of a value by its type: a fixed number of bytes (FIXED), or a length at the beginning of
# the value to which so many bytes are added (COUNTED).
FIXED = {
    0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16,
    0x7F: 0, 0xFF: 0,
}  # fmt: skip
COUNTED = {0x02: 4, 0x03: 0, 0x04: 0, 0x05: 5, 0x0C: 16, 0x0D: 4, 0x0E: 4, 0x0F: 0}
REGULAR_EXPRESSION = 0x0B

# Dates beyond Python's range and UUIDs of any representation keep their bytes.
RAW: "CodecOptions[RawBSONDocument]" = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
)
# For transforms and for messages.
DECODED: "CodecOptions[dict[str, Any]]" = CodecOptions(
    tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


def split(batch: bytes) -> list[bytes]:
    """Return the documents of *batch*, which is their concatenation."""
    # Each document begins with its size.
    documents = []
    position = 0
    while position < len(batch):
        end = position + int.from_bytes(batch[position : position + 4], "little")
        documents.append(batch[position:end])
        position = end
    return documents


def id_of(document: bytes) -> bytes | None:
    """Return the element of the ``_id``; None if there is none, as in some views."""
    found = _find(document)
    return None if found is None else document[found[0] : found[1]]


def value_of(element: bytes) -> Any:
    """
    Return the value of an ``_id``, by its element.

    :raises BSONError: it cannot be decoded, such as a string that is not UTF-8.
    """
    return RawBSONDocument(_document(element), RAW)["_id"]


def is_readable(element: bytes) -> bool:
    """Return whether the ``_id`` can be decoded, so that a query can contain it."""
    try:
        value_of(element)
    except BSONError:
        return False
    return True


def last_readable(documents: Iterable[bytes]) -> bytes | None:
    """Return the last ``_id`` of *documents* that a query can contain, None if there is none."""
    for document in reversed(list(documents)):
        element = id_of(document)
        if element is not None and is_readable(element):
            return element
    return None


def derived(element: bytes, identity: bytes) -> bytes:
    """
    Return the element of a new ``_id``, an ObjectId that depends only on the arguments.

    :param element: the old ``_id``.
    :param identity: key of the copy, as bytes, at most 64.
    """
    # Repeatable, so that a resumed copy and a change stream find the same document again.
    return OBJECT_ID + blake2b(element, key=identity, digest_size=12).digest()


def with_id(document: bytes, element: bytes) -> bytes:
    """
    Return a document with another ``_id``, at its beginning.

    :param document: BSON.
    :param element: of the ``_id``.
    """
    # Without an _id: inserted after the four bytes of the size.
    start, end = _find(document) or (4, 4)
    return _document(element + document[4:start] + document[end:-1])


def _document(elements: bytes) -> bytes:
    return struct.pack("<i", len(elements) + 5) + elements + b"\0"


def _find(document: bytes) -> tuple[int, int] | None:
    """Return the begin and the end of the element of the ``_id``, None if there is none."""
    # Servers store it at the front, so usually the first element is the right one.
    position = 4
    while kind := document[position]:
        name_end = document.index(0, position + 1)
        end = _value_end(document, kind, name_end + 1)
        if document[position + 1 : name_end] == NAME:
            return position, end
        position = end
    return None


def _value_end(document: bytes, kind: int, start: int) -> int:
    if kind in FIXED:
        return start + FIXED[kind]
    if kind in COUNTED:
        counted = int.from_bytes(document[start : start + 4], "little")
        return start + counted + COUNTED[kind]
    # Two strings that end with NUL, the pattern and the options.
    if kind == REGULAR_EXPRESSION:
        return document.index(0, document.index(0, start) + 1) + 1
    raise bson.InvalidBSON(f"an element has the type {kind:#04x}, which BSON does not know")
