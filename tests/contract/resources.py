"""
What the contract suite needs to know of each resource: one declaration each.

A test makes items of a group of its own, and lists that group by its filter; a resource whose items
share nothing is listed whole.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from msgspec import Struct

from app.records import Agent, Author, Book, Genre, Key, Message, Product, State, Task
from tests.helpers.support import Service

Document = dict[str, Any]
_numbers = itertools.count(1)


def mark() -> str:
    """Return a word that nothing else is called; later ones come later in every order of texts."""
    return f"mark{next(_numbers):06d}"


def number(mark: str) -> int:
    """Return the number in a mark, far from those of the sample."""
    return 500_000_000 + int(mark[-6:])


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One resource, as its clients know it."""

    name: str
    item: type[Struct]
    # What the items of a group share, as it is sent; with it whatever they refer to is made.
    group: Callable[[Service], Document] = lambda _: {}
    # A body of this group, unlike every other one: the mark is in a field that is ordered by.
    new: Callable[[Document, str], Document]
    # The query that finds the group; empty lists everything.
    of_group: Callable[[Document], Mapping[str, str]] = lambda _: {}
    # All filters, each with the value that finds this item.
    found_by: Callable[[Document], Mapping[str, str]]
    # The field of a document that is asked for by each filter, where their names differ.
    shown: Callable[[Document, str], Any] = lambda item, name: item[name]
    orders: tuple[str, ...]
    # A merge patch of any item with a new mark: the item shows its members as they are then.
    patch: Callable[[str], Document]
    # A member that is wrong, and the pointer to it.
    wrong: tuple[Document, str]
    # A member that is gone with null, and what it is then; without one, null is a fault.
    default: tuple[str, Any] | None = None
    is_unique: bool = False  # the same body twice is a conflict
    missing: Any = 987_654_321
    limit: int = 50
    is_idempotent: bool = True  # takes an Idempotency-Key
    may_be_empty: frozenset[str] = field(default_factory=frozenset)  # of the filters
    # Only the answer to its creation shows these.
    shown_once: frozenset[str] = field(default_factory=frozenset)

    @property
    def path(self) -> str:
        return f"/{self.name}"

    def __str__(self) -> str:
        return self.name

    def make(self, api: Service, group: Document, count: int) -> list[Document]:
        """Create *count* items of *group*; return them as answered, in the order of their ids."""
        sent = [self.new(group, mark()) for _ in range(count)]
        made = api.ask("POST", f"{self.path}/batch", {"items": sent})
        assert made.status == 201, made.body
        return cast(list[Document], made.json["items"])


def _new_agent(api: Service) -> Document:
    return {"agent_id": api.ask("POST", "/agents", {"name": f"{mark()} owner"}).json["id"]}


def _named(name: str, item: type[Struct]) -> Kind:
    return Kind(
        name=name,
        item=item,
        new=lambda group, mark: {"name": mark},
        found_by=lambda item: {"name": item["name"]},
        orders=("id", "name", "created_at", "updated_at"),
        patch=lambda mark: {"name": mark},
        wrong=({"name": ""}, "/name"),
        is_unique=True,
    )


AGENTS = _named("agents", Agent)
AUTHORS = _named("authors", Author)
GENRES = _named("genres", Genre)
TASKS = Kind(
    name="tasks",
    item=Task,
    group=_new_agent,
    new=lambda group, mark: {**group, "title": mark, "status": "running"},
    of_group=lambda group: {"agent_id": str(group["agent_id"])},
    found_by=lambda item: {
        "agent_id": str(item["agent_id"]),
        "status": item["status"],
        "title": item["title"],
    },
    orders=("id", "title", "created_at", "updated_at"),
    patch=lambda mark: {"title": mark, "status": "done"},
    wrong=({"status": "asleep"}, "/status"),
    default=("status", "pending"),
)
BOOKS = Kind(
    name="books",
    item=Book,
    group=lambda _: {"authors": [mark(), "Ursula K. Le Guin"]},
    new=lambda group, mark: {
        **group,
        "title": mark,
        # Some are of the same day, some of none.
        "published": None if int(mark[-1]) % 3 == 0 else f"1968-11-0{1 + int(mark[-1]) // 3}",
        "genres": ["fantasy", "myth"],
    },
    of_group=lambda group: {"author": group["authors"][0]},
    found_by=lambda item: {
        "title": item["title"],
        **({"published": item["published"]} if item["published"] else {}),
        "author": item["authors"][0]["name"],
        "genre": item["genres"][1]["name"],
    },
    shown=lambda item, name: (
        item[name]
        if name in ("title", "published")
        else {"author": item["authors"][0]["name"], "genre": item["genres"][1]["name"]}[name]
    ),
    orders=("id", "title", "published", "created_at", "updated_at"),
    patch=lambda mark: {"title": mark, "published": "2001-02-03"},
    wrong=({"authors": ["a", ""]}, "/authors/1"),
    default=("published", None),
    limit=20,
)

KEYS = Kind(
    name="keys",
    item=Key,
    new=lambda group, mark: {"name": mark, "scopes": ["read"]},
    found_by=lambda item: {"name": item["name"]},
    orders=("id", "name", "created_at", "updated_at"),
    patch=lambda mark: {"name": mark, "scopes": ["read", "write"]},
    wrong=({"scopes": ["fly"]}, "/scopes/0"),
    default=("expires_at", None),
    is_unique=True,
    is_idempotent=False,
    shown_once=frozenset({"key"}),
)
NO_DOCUMENT = "f" * 24
STATES = Kind(
    name="states",
    item=State,
    group=lambda _: {"task_id": number(mark())},
    new=lambda group, mark: {**group, "agent_id": number(mark), "data": {"mark": mark}},
    of_group=lambda group: {"task_id": str(group["task_id"])},
    found_by=lambda item: {"task_id": str(item["task_id"]), "agent_id": str(item["agent_id"])},
    orders=("id", "updated_at"),
    patch=lambda mark: {"data": {"mark": mark}},
    wrong=({"data": []}, "/data"),
    is_unique=True,
    missing=NO_DOCUMENT,
)
MESSAGES = Kind(
    name="messages",
    item=Message,
    group=lambda _: {"task_id": number(mark())},
    new=lambda group, mark: {**group, "role": "user", "content": mark, "agent_id": number(mark)},
    of_group=lambda group: {"task_id": str(group["task_id"])},
    found_by=lambda item: {
        "task_id": str(item["task_id"]),
        "agent_id": str(item["agent_id"]),
        "role": item["role"],
    },
    orders=("created_at", "id"),
    patch=lambda mark: {"content": mark},
    wrong=({"role": "prompter"}, "/role"),
    default=("agent_id", None),
    missing=NO_DOCUMENT,
)
PRODUCTS = Kind(
    name="products",
    item=Product,
    group=lambda _: {"brand": mark()},
    new=lambda group, mark: {
        **group,
        "offerId": mark,
        "title": mark,
        "link": "https://shop.example/x",
        "price": {"value": "12.50", "currency": "EUR"},
        "gtin": "",
        "slug": {"DE": "x", "US": ""},
    },
    of_group=lambda group: {"brand": group["brand"]},
    found_by=lambda item: {
        "offerId": item["offerId"],
        "brand": item["brand"],
        "gtin": "",
        "slug.US": "",
        "currency": "EUR",
    },
    shown=lambda item, name: (
        {"slug.US": item["slug"].get("US"), "currency": item["price"]["currency"]}[name]
        if name in ("slug.US", "currency")
        else item[name]
    ),
    orders=("id", "offerId"),
    patch=lambda mark: {"offerId": mark, "price": {"value": "1.00", "currency": "USD"}},
    wrong=({"price": {"value": "dear", "currency": "EUR"}}, "/price/value"),
    is_unique=True,
    missing=NO_DOCUMENT,
    may_be_empty=frozenset({"brand", "gtin", "slug.US"}),
)

KINDS = (BOOKS, AUTHORS, GENRES, AGENTS, TASKS, KEYS, STATES, MESSAGES, PRODUCTS)


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each resource in turn."""
    return cast(Kind, request.param)
