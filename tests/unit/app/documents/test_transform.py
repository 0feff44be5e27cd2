"""What becomes of a document on its way."""

from pathlib import Path
from typing import Any

import bson
import pytest

from app.documents import ids
from app.documents.transform import Recipe, TransformRefused, load
from greenline.errors import ConfigError

MAX = 16 * 1024 * 1024
BROKEN = bson.encode({"_id": 1, "x": "ab"}).replace(b"ab", b"\xff\xfe")
TWICE = bson.encode({"_id": 1, "x": 1, "y": 2}).replace(b"\x10y\0", b"\x10x\0")
TWICE_INSIDE = bson.encode({"_id": 1, "z": {"x": 1, "y": 2}}).replace(b"\x10y\0", b"\x10x\0")


def recipe(transform: Any = None, identity: bytes | None = None, size: int = MAX) -> Recipe:
    return Recipe(identity, transform, size)


@pytest.mark.parametrize("document", [BROKEN, TWICE, TWICE_INSIDE], ids=["utf-8", "twice", "deep"])
def test_what_cannot_be_decoded_is_copied_as_it_is(document: bytes) -> None:
    """With the same id all of it, with a new one the rest."""
    assert recipe().one(document) == document
    made = recipe(identity=b"copy").one(document)
    assert made is not None
    old, new = ids.id_of(document), ids.id_of(made)
    assert old is not None
    assert new == ids.derived(old, b"copy")
    assert made.removeprefix(made[:4] + new) == document.removeprefix(document[:4] + old)


@pytest.mark.parametrize("document", [BROKEN, TWICE, TWICE_INSIDE], ids=["utf-8", "twice", "deep"])
def test_a_transform_is_not_given_what_decoding_changes(document: bytes) -> None:
    """It would lose something without a word: the document fails."""
    with pytest.raises(TransformRefused):
        recipe(lambda found: found).one(document)


def test_a_transform_changes_leaves_out_and_fails() -> None:
    """Each document by itself, with its reason."""

    def transform(found: dict[str, Any]) -> dict[str, Any] | None:
        if found["n"] == 2:
            raise KeyError("size")
        return None if found["n"] == 1 else {"n": found["n"] * 10}

    documents = [bson.encode({"_id": n, "n": n}) for n in range(4)]
    prepared = recipe(transform).prepare(documents)
    assert [bson.decode(made) for made in prepared.documents] == [
        {"_id": 0, "n": 0},
        {"_id": 3, "n": 30},
    ]
    assert prepared.read == [documents[0], documents[3]]
    assert prepared.skipped == 1
    (failure,) = prepared.failures
    assert (failure.document, failure.reason) == (documents[2], "KeyError: 'size'")


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (ValueError("the size:\nnone"), "ValueError: the size:"),
        (SystemExit("enough"), "SystemExit: enough"),
        (KeyError(), "KeyError"),
    ],
)
def test_what_a_transform_raises_is_the_documents_failure(
    raised: BaseException, reason: str
) -> None:
    """In one line; also what would end the process."""

    def transform(_: dict[str, Any]) -> dict[str, Any]:
        raise raised

    (failure,) = recipe(transform).prepare([bson.encode({"_id": 1})]).failures
    assert failure.reason == reason


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ({"_id": 2}, "another _id"),
        (["a list"], "AttributeError"),
        ({"x": {1, 2}}, "cannot encode"),
        ({"x": "y" * 200}, "bytes"),
    ],
    ids=["id", "no dict", "no BSON", "too large"],
)
def test_what_a_transform_must_not_return(returned: Any, reason: str) -> None:
    """The document fails, and the reason says why."""
    with pytest.raises(TransformRefused, match=reason):
        recipe(lambda _: returned, size=200).one(bson.encode({"_id": 1}))


def test_a_document_that_grows_beyond_the_limit_fails() -> None:
    """A new id may be longer than the old one."""
    document = bson.encode({"_id": 1, "x": "y" * 100})
    assert recipe(size=len(document)).one(document) == document
    with pytest.raises(TransformRefused, match="bytes"):
        recipe(identity=b"copy", size=len(document)).one(document)


def test_without_an_id_nothing_can_be_resumed() -> None:
    """A view may have such documents."""
    with pytest.raises(TransformRefused, match="no _id"):
        recipe().one(bson.encode({"x": 1}))


@pytest.mark.parametrize(
    "name",
    ["json", "json:", ":dumps", "json:nothing", "json:__name__", "no_such_module:f"],
)
def test_a_transform_that_is_not_there_is_named(name: str) -> None:
    """Before anything is copied."""
    with pytest.raises(ConfigError, match=name):
        load(name)


def test_a_module_that_ends_the_process_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script does that was made to be run."""
    (tmp_path / "a_script.py").write_text("raise SystemExit('usage:\\na_script FILE')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^--transform a_script:f: SystemExit: usage:$"):
        load("a_script:f")
