"""Documents for tests: of all types, odd ones, and as mongodump's archives have them."""

import struct
from datetime import UTC, datetime
from typing import Any

import bson
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef

from app.documents.mongodump import MAGIC, TERMINATOR

# A value of each type that MongoDB stores.
EVERYTHING = {
    "_id": ObjectId("0123456789abcdef01234567"),
    "double": 1.5,
    "whole double": 2.0,
    "infinite": float("inf"),
    "text": 'ä\u2028\0\x01"\\',
    "document": {"b": 1, "a": {"": None}},
    "list": [1, [2, {}]],
    "bytes": b"\0\xff",
    "uuid": Binary(bytes(16), 4),
    "old uuid": Binary(bytes(16), 3),
    "true": True,
    "date": datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    "regex": Regex("^a", "im"),
    "code": Code("f()", {"x": 1}),
    "int": 7,
    "long": Int64(7),
    "large": Int64(2**62),
    "timestamp": Timestamp(1, 2),
    "decimal": Decimal128("1.10"),
    "least": MinKey(),
    "most": MaxKey(),
    "reference": DBRef("other", ObjectId("0123456789abcdef01234567")),
}
DOCUMENT = bson.encode(EVERYTHING)
# A date that MongoDB stores, that Python has no datetime for, and that SecantusDB refuses.
LATE = bson.encode({"_id": 1, "late date": DatetimeMS(2**60)})


def document(elements: bytes) -> bytes:
    """Return BSON of *elements*, which no encoder would write."""
    return struct.pack("<i", len(elements) + 5) + elements + b"\0"


ONE = b"\x10a\0\1\0\0\0"
TWICE = document(ONE + ONE)
TWICE_WITHIN = document(b"\x04list\0" + document(b"\x030\0" + TWICE))
LATIN_1 = document(b"\x02name\0\3\0\0\0\xe4x\0")

# What is in an archive of mongodump that has two collections.
A: list[dict[str, Any]] = [{"_id": n, "a": "x" * n} for n in range(5)]
B: list[dict[str, Any]] = [{"_id": "b"}]
PRELUDE = {
    "concurrent_collections": 4,
    "version": "0.1",
    "server_version": "8.0.4",
    "tool_version": "100.10.0",
}


def block(name: str, documents: list[dict[str, Any]], *, end: bool = False) -> bytes:
    """Return a header of a collection in shop, documents of it, and the terminator."""
    header = {"db": "shop", "collection": name, "EOF": end, "CRC": Int64(0)}
    return b"".join(map(bson.encode, [header, *documents])) + TERMINATOR


def archive(*names: str) -> bytes:
    """Return the beginning of an archive that announces these collections of shop."""
    about = {"metadata": '{"indexes":[]}', "size": 5, "type": "collection"}
    metadata = [{"db": "shop", "collection": name, **about} for name in names]
    return MAGIC + b"".join(map(bson.encode, [PRELUDE, *metadata])) + TERMINATOR


# Two collections in turns, as threads of mongodump write them.
BOTH = (
    archive("a", "b")
    + block("a", A[:2])
    + block("b", B)
    + block("b", [], end=True)
    + block("a", A[2:])
    + block("a", [], end=True)
)
