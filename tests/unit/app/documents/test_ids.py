"""The _id of raw documents."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import (
    Binary,
    Code,
    DatetimeMS,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)

from app.documents import ids

VALUES: list[Any] = [
    1, Int64(1), 1.0, Decimal128(Decimal("1.5")), "text", "", b"bytes", Binary(b"\0" * 16, 4),
    Binary.from_uuid(UUID(int=7)), ObjectId(b"0" * 12), True, None, MinKey(), MaxKey(),
    Timestamp(1, 2), DatetimeMS(-(2**62)), DatetimeMS(0), {"a": {"b": [1, "x"]}}, {},
    Code("f()"), Code("f()", {"x": 1}), Regex("a.*b", "i"), DBRef("c", 1), [1, [2]],
]  # fmt: skip


def encoded(**fields: Any) -> bytes:
    """Return the fields in this order: bson.encode puts the _id first."""
    elements = b"".join(bson.encode({name: value})[4:-1] for name, value in fields.items())
    return (len(elements) + 5).to_bytes(4, "little") + elements + b"\0"


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_an_id_is_found_behind_and_before_any_other_value(value: Any) -> None:
    """Whatever type it has, and whatever stands before it."""
    alone = bson.encode({"_id": value})
    element = ids.id_of(alone)
    assert element == alone[4:-1]
    for other in VALUES:
        document = encoded(x=other, _id=value, _id_=1, y=other)
        assert ids.id_of(document) == element
        assert ids.with_id(document, element) == bson.encode(
            {"_id": value, "x": other, "_id_": 1, "y": other}
        )
        assert ids.id_of(bson.encode({"x": other})) is None


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_the_same_bytes(value: Any) -> None:
    """So that a query for it finds this document and no other."""
    element = bson.encode({"_id": value})[4:-1]
    again = bson.encode({"_id": ids.value_of(element)}, codec_options=ids.RAW)
    assert again[4:-1] == element


def test_new_ids_are_object_ids_that_depend_on_the_old_one_and_on_the_copy() -> None:
    """The type counts, too: 1 and "1" are two documents."""
    elements = [bson.encode({"_id": value})[4:-1] for value in VALUES]
    made = {ids.derived(element, copy) for element in elements for copy in (b"a", b"b")}
    assert len(made) == 2 * len(set(elements))
    assert all(isinstance(ids.value_of(element), ObjectId) for element in made)
    assert ids.derived(elements[0], b"a") == ids.derived(elements[0], b"a")


def test_an_id_that_is_no_text_is_not_asked_for() -> None:
    """The last one before it is, and what comes behind that is read again."""
    broken = bson.encode({"_id": "ab"}).replace(b"ab", b"\xff\xfe")
    documents = [bson.encode({"_id": 1}), bson.encode({"_id": 2}), broken]
    assert ids.last_readable(documents) == bson.encode({"_id": 2})[4:-1]
    assert ids.last_readable([broken]) is None


def test_a_batch_is_split_where_its_documents_end() -> None:
    """Their lengths say where."""
    documents = [bson.encode({"_id": number, "x": "y" * number}) for number in range(5)]
    assert ids.split(b"".join(documents)) == documents
    assert ids.split(b"") == []


def test_an_unknown_type_is_refused() -> None:
    """Its length is not known: what follows could be anything."""
    document = encoded(x=1, _id=1).replace(b"\x10x\0", b"\x33x\0")
    with pytest.raises(bson.InvalidBSON):
        ids.id_of(document)


def test_dates_have_their_own_type() -> None:
    """A date in Python's range and the same in milliseconds are one _id."""
    as_date = bson.encode({"_id": datetime(1970, 1, 1, tzinfo=UTC)})
    assert as_date == bson.encode({"_id": DatetimeMS(0)})
