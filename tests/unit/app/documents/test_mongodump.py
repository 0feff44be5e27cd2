"""The framing of a mongodump archive."""

import io
import struct

import bson
import pytest

from app.documents.files import FileError
from app.documents.mongodump import MAGIC, read_archive
from tests.helpers.stored import BOTH, A, B, archive, block


def read(content: bytes, namespace: str | None = None) -> list[dict[str, object]]:
    """Return the documents of an archive, whose numbers are one after the other."""
    found = list(read_archive(io.BytesIO(content), namespace))
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    return [bson.decode(document) for _, document in found]


def test_the_only_collection_needs_no_name() -> None:
    """It is the one that is meant."""
    assert read(archive("a") + block("a", A) + block("a", [], end=True)) == A


def test_a_collection_is_put_together_from_its_blocks() -> None:
    """Those of the others are passed over."""
    assert read(BOTH, "shop.a") == A
    assert read(BOTH, "shop.b") == B


def test_an_empty_collection_has_a_last_header_only() -> None:
    """No documents and no error."""
    assert read(archive("a") + block("a", [], end=True)) == []


@pytest.mark.parametrize(
    ("namespace", "reason"),
    [
        (None, "^it has shop.a, shop.b; name one: --namespace"),
        ("shop.c", "^it has no shop.c, but shop.a, shop.b; name one"),
    ],
)
def test_which_collection_is_meant_has_to_be_clear(namespace: str | None, reason: str) -> None:
    """The error names those that are there."""
    with pytest.raises(FileError, match=reason):
        read(BOTH, namespace)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "^it does not begin as an archive"),
        (bson.encode({}), "^it does not begin as an archive"),
        (MAGIC, "^a header of the archive: cut off"),
        (archive("a")[:-4], "^the prelude, document 2 of a block: cut off"),
        (archive("a"), "^cut off after document 0 of shop.a"),
        (archive("a") + block("a", A), "^cut off after document 5 of shop.a"),
        (archive("a") + block("a", A)[:-4], "^shop.a, document 6 of a block: cut off"),
        (archive("a") + block("a", A)[:-14], "^shop.a, document 5 of a block: cut off"),
        (archive("a") + struct.pack("<i", 3), "^a header of the archive: a document has 5 to"),
    ],
    ids=["empty", "BSON", "magic", "prelude", "no block", "no end", "no terminator", "in", "size"],
)
def test_a_damaged_archive_is_named(content: bytes, reason: str) -> None:
    """An archive that ends early is not taken for a whole one."""
    with pytest.raises(FileError, match=reason):
        read(content)
