"""
Every query that the API makes on MongoDB is served by an index, as the server's explain tells.

The queries are those that the repositories send, recorded on their way: nothing is written twice.
Where a server scans for a form of query although there is an index for just that, which is asked
first, the queries of that form are not judged on it.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo import ASCENDING, MongoClient
from pymongo.database import Database
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from app.api import messages, products, states
from app.api.resource import Resource
from app.records import MessageInput, Price, ProductInput, StateInput
from app.store.declared import DECLARED
from app.store.indexes import ensure
from app.store.messages import Messages
from app.store.ports import Change, Document, Idempotency, Listing, Position
from app.store.products import Products
from app.store.states import States
from greenline.mongo.batches import Batches
from greenline.mongo.capabilities import Capabilities, read_capabilities
from greenline.mongo.errors import translated

COUNT = 300
LIMIT = 20
VALUES: dict[str, Any] = {
    "task_id": 1,
    "agent_id": 1,
    "role": "user",
    "offerId": "offer-7",
    "brand": "brand 1",
    "gtin": "",
    "mpn": "",
    "imageLink": "",
    "slug_US": "",
    "currency": "EUR",
    "lacking": "slug.US",
}
TOGETHER = [
    {"task_id": 1, "agent_id": 1},
    {"lacking": "slug.US", "currency": "EUR"},
    {"slug_US": "", "currency": "EUR"},
]
PLACES: dict[str, Any] = {
    "id": "7" * 24,
    "created_at": datetime(2026, 1, 1, tzinfo=UTC),
    "updated_at": datetime(2026, 1, 1, tzinfo=UTC),
    "offerId": "offer-100",
}
# Where each kind of command has its filters.
WRITES = {"update": ("updates", "q"), "delete": ("deletes", "q")}
POINTS = {"$eq", "$in"}


class Recorder(CommandListener):
    """Keeps the queries that are sent, by collection."""

    def __init__(self) -> None:
        self.queries: list[tuple[str, Document, Document]] = []

    def started(self, event: CommandStartedEvent) -> None:
        name, command = event.command_name, event.command
        collection = str(command[name])
        if collection not in DECLARED:
            return
        sort = dict(command.get("sort") or {})
        if name in WRITES:
            many, field = WRITES[name]
            filters = [one[field] for one in command[many]]
        elif name == "aggregate":
            filters = [command["pipeline"][0]["$match"]]
        elif name == "findAndModify":
            filters = [command["query"]]
        else:
            filters = [command["filter"]] if "filter" in command else []
        self.queries += [(collection, dict(found), sort) for found in filters]

    def succeeded(self, event: CommandSucceededEvent) -> None: ...

    def failed(self, event: CommandFailedEvent) -> None: ...


class Recorded(Batches):
    """What the repositories are handed."""

    def __init__(self, database: "Database[Document]") -> None:
        self._database = database

    @contextmanager
    def database(self, *, repeatable: bool = False) -> "Iterator[Database[Document]]":
        with translated(repeatable=repeatable):
            yield self._database

    def capabilities(self) -> Capabilities:
        return read_capabilities(self._database)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def mongo(empty_mongo: str, recorder: Recorder) -> Iterator[Recorded]:
    """A database of the test's own, with the indexes."""
    with MongoClient[Document](empty_mongo, tz_aware=True, event_listeners=[recorder]) as client:
        made = Recorded(client.get_default_database())
        for collection, indexes in DECLARED.items():
            for index in indexes:
                assert ensure(made.database, collection, index) is None
        yield made


def resources(mongo: Recorded) -> list[Resource[Any]]:
    return [
        states.resource(States(mongo)),
        messages.resource(Messages(mongo)),
        products.resource(Products(mongo)),
    ]


def state(number: int) -> StateInput:
    return StateInput(1 + number // 10, 1 + number % 10, {})


def message(number: int) -> MessageInput:
    return MessageInput(1 + number % 30, "user" if number % 3 else "tool", "text", 1 + number % 20)


def product(number: int) -> ProductInput:
    slugs: list[dict[str, str]] = [{}, {"US": ""}, {"US": f"kettle-{number}"}]
    return ProductInput(
        offerId=f"offer-{number}",
        title="Kettle",
        link="https://shop.example/kettle",
        price=Price("1", ("EUR", "GBP", "USD")[number // 3 % 3]),
        brand=f"brand {number % 30}",
        slug=slugs[number % 3],
    )


MADE: dict[str, Callable[[int], Any]] = {"states": state, "messages": message, "products": product}


def ask_everything(resource: Resource[Any]) -> None:
    """Ask the repository of *resource* for all that the API can ask it for."""
    repository, make = resource.repository, MADE[resource.name]
    made = repository.create([make(number) for number in range(COUNT)], Idempotency("key", b"once"))
    made += repository.create([make(COUNT)], Idempotency("another", b"once"))
    ids = [str(item.id) for item in made[:5]]
    repository.get(ids[0])
    repository.get_many(ids)
    for count in (1, 3):
        repository.change([Change(item_id, lambda _: make(0)) for item_id in ids[:1]])
        repository.change(
            [Change(one, _same(make, number)) for number, one in enumerate(ids[:count])]
        )
    names = resource.filters.__struct_fields__
    filters: list[Mapping[str, Any]] = [{}, *({name: VALUES[name]} for name in names)]
    filters += [both for both in TOGETHER if both.keys() <= {*names}]
    for chosen, order, descending in itertools.product(filters, resource.orders, (False, True)):
        for before in (None, False, True):
            place = None if before is None else Position(PLACES[order], PLACES["id"], before)
            # A total of everything has no query: it reads everything.
            total = bool(chosen) and place is None
            repository.page(Listing(order, descending, LIMIT, chosen, 1, place, total))
    if isinstance(repository, States):
        repository.get_by({"task_id": 1, "agent_id": 1})
    repository.delete([ids[4]])
    repository.delete([ids[3]], frozenset({1}))
    repository.delete(ids[1:3])
    for chosen in filters[1:]:
        repository.delete_where(chosen)


def _same(make: Callable[[int], Any], number: int) -> Callable[[Document], Any]:
    return lambda _: make(number)


def stages(plan: Any) -> Iterator[str]:
    """Yield the names of all stages in *plan*, whatever the engine that tells them."""
    if isinstance(plan, Mapping):
        if isinstance(plan.get("stage"), str):
            yield plan["stage"]
        for inner in plan.values():
            yield from stages(inner)
    elif isinstance(plan, list):
        for inner in plan:
            yield from stages(inner)


def explained(
    database: "Database[Document]", collection: str, query: Document, sort: Document
) -> Document:
    command = {"find": collection, "filter": query, **({"sort": sort} if sort else {})}
    explanation = database.command("explain", command, verbosity="queryPlanner")
    plan: Document = explanation["queryPlanner"]["winningPlan"]
    return plan


def form(collection: str, query: Document, sort: Document) -> str:
    """Return what a server may have no plan for in *query*, empty if there is nothing."""
    if any(name.startswith("$") for name in query):
        return "logical"
    ranges = [name for name, value in query.items() if _is_range(value)]
    if query.keys() <= {"_id"} and ranges == [*query] and next(iter(sort), "_id") == "_id":
        return "in the order of _id"
    points = query.keys() - ranges
    is_whole = any(
        {*index.keys[: len(points)]} == points
        and list(index.keys[len(points) : len(query)]) == ranges
        for index in DECLARED[collection]
    )
    return "" if is_whole or len(query) < 2 else "a part of it"


def _is_range(value: Any) -> bool:
    return isinstance(value, dict) and not POINTS & value.keys()


# A query of each form, for a collection with an index on a.
PROBES: dict[str, Document] = {
    "logical": {"a": {"$gt": 0}, "$or": [{"a": 1}, {"b": 1}]},
    "in the order of _id": {"_id": {"$gt": ObjectId("0" * 24)}},
    "a part of it": {"a": 1, "b": 1},
}


def scanned_forms(database: "Database[Document]") -> set[str]:
    """Return the forms of query for which this server uses no index, whatever there is."""
    database.probe.create_index([("a", ASCENDING)])
    database.probe.insert_many([{"a": number, "b": number} for number in range(COUNT)])
    return {
        name
        for name, query in PROBES.items()
        if "COLLSCAN" in stages(explained(database, "probe", query, {}))
    }


def test_every_query_is_served_by_an_index(mongo: Recorded, recorder: Recorder) -> None:
    """Lists with each filter, order and place, their totals, items, batches and deletions."""
    with mongo.database() as database:
        scanned = scanned_forms(database)
        for resource in resources(mongo):
            ask_everything(resource)
        queries = {repr(query): query for query in recorder.queries}.values()
        assert len(queries) > 200
        judged, without = 0, []
        for collection, query, sort in queries:
            if form(collection, query, sort) in scanned:
                continue
            judged += 1
            found = {*stages(explained(database, collection, query, sort))}
            if "COLLSCAN" in found or not any("IXSCAN" in one or one == "IDHACK" for one in found):
                without.append((collection, query, sort, found))
        assert without == []
        print(f"{judged} of {len(queries)} queries judged; this server scans: {sorted(scanned)}")
        assert judged > len(queries) / 3


@pytest.mark.parametrize("filters", TOGETHER[1:], ids=["lacking", "default"])
def test_a_missing_slug_and_a_default_one_have_the_compound_index(
    mongo: Recorded, recorder: Recorder, filters: Mapping[str, Any]
) -> None:
    """Counted and paged: by the slug and the currency at once, in order."""
    repository = Products(mongo)
    repository.create([product(number) for number in range(COUNT)])
    recorder.queries.clear()
    for place in (None, Position(PLACES["id"], PLACES["id"])):
        repository.page(Listing("id", False, LIMIT, filters, position=place, total=place is None))
    assert len(recorder.queries) == 3
    with mongo.database() as database:
        for collection, query, sort in recorder.queries:
            plan = explained(database, collection, query, sort)
            assert "COLLSCAN" not in stages(plan)
            keys = [*_index_keys(plan)]
            assert keys
            assert all(key[:2] == ["slug.US", "price.currency"] for key in keys), plan


def _index_keys(plan: Any) -> Iterator[list[str]]:
    if isinstance(plan, Mapping):
        if "keyPattern" in plan:
            yield [*plan["keyPattern"]]
        for inner in plan.values():
            yield from _index_keys(inner)
    elif isinstance(plan, list):
        for inner in plan:
            yield from _index_keys(inner)
