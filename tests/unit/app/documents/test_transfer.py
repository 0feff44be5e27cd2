"""Documents on their way to a file and from one, without a server."""

import bson
import pytest

from app.documents import files, transfer
from app.documents.files import FileError
from tests.helpers.stored import LATIN_1, ONE, document


def test_batches_are_small_in_bytes_too() -> None:
    """Large documents make short batches, the largest one a batch of its own."""
    large = bytes(transfer.BATCH_BYTES // 3)
    batches = list(transfer.in_batches([(n, large) for n in range(7)] + [(7, large * 5)]))
    assert [len(batch) for batch in batches] == [3, 3, 1, 1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            document(bson.encode({"_id": 5})[4:-1] + ONE + ONE),
            "document 2, _id 5: not valid BSON: two fields are named 'a'",
        ),
        (LATIN_1, "document 2: not valid BSON: 'utf-8' codec can't decode byte 0xe4"),
    ],
    ids=["two fields of one name", "no UTF-8"],
)
def test_a_stored_document_that_json_cannot_hold_is_named(content: bytes, said: str) -> None:
    """By its number and its _id. BSON holds it."""
    batches = [[bson.encode({"_id": 4})], [content]]
    written: list[bytes] = []
    with pytest.raises(FileError, match=f"^{said}"):
        transfer.export_documents(batches, written.append, files.writer("ndjson"))
    assert written == [b'{"_id":4}\n']
    assert transfer.export_documents(batches, written.append, files.writer("bson")) == 2
    assert written[-1] == content
