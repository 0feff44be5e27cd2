"""greenline.mongo.capabilities: what a server is known to do."""

import pytest
from pymongo.errors import OperationFailure

from tests.integration.conftest import Connect


@pytest.mark.parametrize("preference", ["primary", "secondaryPreferred"])
def test_what_the_server_can_do_is_what_it_does(connect: Connect, preference: str) -> None:
    """Transactions where one works, wherever else is read; and it is asked once."""
    client = connect(10, f"readPreference={preference}")
    found = client.capabilities()
    with client.database() as database:
        try:
            with database.client.start_session() as session, session.start_transaction():
                database.things.insert_one({"_id": 1}, session=session)
            works = True
        except OperationFailure:
            works = False
    client.insert_all("things", [{"_id": 2}, {"_id": 3}])
    assert found.has_transactions is works
    assert client.capabilities() is found
