"""Batches on a server without transactions."""

from uuid import uuid4

import pytest

from embedded.mongo import Mongo as Server
from tests.integration.conftest import Connect


@pytest.fixture
def engine(standalone_mongo: Server) -> Server:
    """A server without transactions."""
    return standalone_mongo


def test_a_batch_with_a_uuid_is_undone(connect: Connect) -> None:
    """The URI says how a UUID is stored, and its documents are recognized as our own."""
    client = connect(2, "uuidRepresentation=standard")
    assert not client.capabilities().has_transactions
    old = [{"_id": number, "key": uuid4(), "version": 1} for number in (1, 2)]
    client.insert_all("things", old)
    new = [{**one, "key": uuid4(), "version": 2} for one in old]
    other = {**old[1], "version": 7}
    assert client.swap_all("things", [(old[0], new[0]), (other, new[1])]) is False
    assert client.read(lambda database: list(database.things.find().sort("_id"))) == old
