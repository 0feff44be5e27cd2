"""The service with the options that Amazon DocumentDB and Azure Cosmos DB ask for in their URIs."""

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from embedded.mongo import Mongo
from tests.helpers.support import Databases, Service, service

OPTIONS = "retryWrites=false&readPreference=secondaryPreferred&maxIdleTimeMS=120000&appName=@a@"


@pytest.fixture(scope="module", params=["mongo", "standalone_mongo"])
def documentdb(databases: Databases, request: pytest.FixtureRequest) -> Iterator[Service]:
    """The service on a replica set, which they are, and on what has no transactions."""
    server: Mongo = request.getfixturevalue(request.param)
    with MongoClient[Any](server.url) as client:
        name = client.admin.command("hello").get("setName")
        client.drop_database("documentdb")
    member = f"&replicaSet={name}" if name else ""
    environ = {
        "MONGODB_URI": f"{server.url}documentdb?{OPTIONS}{member}",
        "MONGODB_DOCUMENTDB": "1",
    }
    with service({**databases.environ, **environ}) as running:
        yield running


def test_items_are_written_read_listed_and_deleted(documentdb: Service) -> None:
    """One by one, and as a batch, of which a refused one leaves nothing."""
    first = {"task_id": 1, "agent_id": 1, "data": {"step": 1}}
    made = documentdb.ask("POST", "/states", first)
    assert made.status == 201, made.body
    at = f"/states/{made.json['id']}"
    changed = documentdb.ask("PATCH", at, {"data": {"step": 2}}, {"If-Match": '"1"'})
    assert (changed.status, changed.json["version"]) == (200, 2)
    assert documentdb.ask("PATCH", at, {"data": {}}, {"If-Match": '"1"'}).status == 412
    batch = {"items": [{**first, "agent_id": number} for number in (2, 3, 4)]}
    assert documentdb.ask("POST", "/states/batch", batch).status == 201
    refused = {"items": [{**first, "agent_id": number} for number in (5, 4)]}
    assert documentdb.ask("POST", "/states/batch", refused).status == 409
    listed = documentdb.get("/states?task_id=1&total=true").json
    assert sorted(one["agent_id"] for one in listed["items"]) == [1, 2, 3, 4]
    once = {"Idempotency-Key": "once"}
    said = {"task_id": 1, "role": "user", "content": "begin"}
    answers = [documentdb.ask("POST", "/messages", said, once) for _ in range(2)]
    assert answers[0].json == answers[1].json
    ids = [one["id"] for one in listed["items"]]
    assert documentdb.ask("DELETE", "/states/batch", {"ids": ids}).json == {"deleted": 4}
    assert documentdb.get(at).status == 404
