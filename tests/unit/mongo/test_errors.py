"""greenline.mongo.errors: what mongod says in more detail than the server of the other tests."""

from typing import Any

import pytest
from pymongo.errors import BulkWriteError, DocumentTooLarge, DuplicateKeyError, OperationFailure

from greenline.errors import Conflict, StoreDown, StoreError, Unavailable
from greenline.mongo.errors import translate

DUPLICATE = {"index": 1, "code": 11000, "keyPattern": {"task_id": 1, "agent_id": 1}}
REFUSED = {"index": 0, "code": 121, "errmsg": "Document failed validation"}
CANCELED = {"index": 0, "code": 1, "errmsg": "[backend.go:37] context canceled"}


def many(*refused: dict[str, Any]) -> BulkWriteError:
    return BulkWriteError({"writeErrors": list(refused), "nInserted": 1})


@pytest.mark.parametrize(
    "error",
    [
        DuplicateKeyError("E11000 duplicate key error", 11000, DUPLICATE),
        many(DUPLICATE),
        many(REFUSED, DUPLICATE),
    ],
    ids=["one", "many", "many for several reasons"],
)
def test_a_duplicate_names_its_key(error: DuplicateKeyError | BulkWriteError) -> None:
    """The fields of the violated index, in the error and in its message."""
    translated = translate(error)
    assert isinstance(translated, Conflict)
    assert translated.constraint == "task_id, agent_id"
    assert "task_id, agent_id" in str(translated)


def test_other_refusals_among_many_are_no_conflict() -> None:
    """A document that fails the validation contradicts nothing that is stored."""
    assert type(translate(many(REFUSED))) is StoreError


def test_a_document_that_is_too_large_is_no_failure_of_the_server() -> None:
    """The client's item does not go with what is stored."""
    assert type(translate(DocumentTooLarge("BSON document too large"))) is Conflict


@pytest.mark.parametrize(
    "error",
    [
        OperationFailure("context canceled", 1, CANCELED),
        OperationFailure("context canceled", 1),
        many(CANCELED),
    ],
    ids=["one", "one without details", "many"],
)
def test_a_command_that_ferretdb_has_canceled_is_an_outage(error: OperationFailure) -> None:
    """It stops: the same may be done again in a moment."""
    translated = translate(error)
    assert type(translated) is StoreDown
    assert isinstance(translated, Unavailable)


def test_the_text_of_a_refused_document_is_no_outage() -> None:
    """A refusal repeats the document, which may contain what FerretDB answers."""
    refused = {**REFUSED, "op": {"_id": 1, "text": "context canceled"}}
    assert type(translate(many(refused))) is StoreError
