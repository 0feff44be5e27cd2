"""Lists of a resource over HTTP: filters, orders, pages, and cursors that keep their place."""

import random
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any
from urllib.parse import urlencode

import pytest

from app.api import cursors
from tests.contract.resources import KINDS, Document, Kind, kind, mark
from tests.helpers.support import Answer, Service

__all__ = ["kind"]

MOST_PAGES = 300
ORDERS = [
    pytest.param(kind, sign + order, id=f"{kind}-{sign}{order}")
    for kind in KINDS
    for order in kind.orders
    for sign in ("", "-")
]


def ask(api: Service, kind: Kind, query: Mapping[str, Any]) -> Answer:
    return api.get(f"{kind.path}?{urlencode(query)}")


def listed(api: Service, kind: Kind, query: Mapping[str, Any]) -> Document:
    answer = ask(api, kind, query)
    assert answer.status == 200, answer.body
    return dict(answer.json)


def walk(
    api: Service, kind: Kind, query: Mapping[str, Any], start: Document, forth: bool = True
) -> Iterator[Document]:
    """Yield the pages that come after *start*, or before it, one cursor after the other."""
    name, place = ("next", "after") if forth else ("previous", "before")
    page = start
    for _ in range(MOST_PAGES):
        if page[name] is None:
            return
        page = listed(api, kind, {**query, place: page[name]})
        yield page
    pytest.fail(f"the list has more than {MOST_PAGES} pages")


def ids(items: list[Document]) -> list[Any]:
    return [item["id"] for item in items]


def in_order(items: list[Document], order: str) -> list[Document]:
    """Return *items* as a list in this order has them: what lacks the field comes last."""
    name = order.removeprefix("-")

    def key(item: Document) -> tuple[bool, Any, Any]:
        return item[name] is None, item[name] or "", item["id"]

    return sorted(items, key=key, reverse=order.startswith("-"))


def test_a_list_has_its_default_limit(api: Service, kind: Kind) -> None:
    """20 books, 50 of everything else, by id, and a cursor to what follows."""
    group = kind.group(api)
    made = kind.make(api, group, kind.limit + 1)
    page = listed(api, kind, kind.of_group(group))
    assert len(page["items"]) == kind.limit
    assert ids(page["items"]) == sorted(ids(page["items"]))
    assert (page["next"] is not None, page["previous"]) == (True, None)
    if kind.of_group(group):
        assert ids(page["items"]) == ids(made)[: kind.limit]


def test_the_limit_is_obeyed(api: Service, kind: Kind) -> None:
    """One to a hundred items, as asked; the response says that there are more."""
    group = kind.group(api)
    kind.make(api, group, 101)
    for limit in (1, 100):
        page = listed(api, kind, {**kind.of_group(group), "limit": limit})
        assert (len(page["items"]), page["next"] is not None) == (limit, True)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=101", "limit=x", "limit=1&limit=2", "page=0", "page=x", "order=sesame",
        "order=--id", "sesame=1", "total=perhaps", "after=", "after=x", "before=%00",
        "page=1&after=x", "after=x&before=x",
    ],
)  # fmt: skip
def test_a_query_that_means_nothing_is_a_422(api: Service, kind: Kind, query: str) -> None:
    """Out of range, unknown, given twice, excluding each other: an error, never a guess."""
    answer = api.get(f"{kind.path}?{query}")
    assert answer.status == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    named = {fault.get("name") for fault in answer.json["errors"]}
    assert named <= {pair.partition("=")[0] for pair in query.split("&")} | {None}


def test_pages_by_number_follow_each_other(api: Service, kind: Kind) -> None:
    """The second begins where the first ends; one beyond the end is empty, and has no next."""
    group = kind.group(api)
    kind.make(api, group, 5)
    query = {**kind.of_group(group), "order": "-id", "limit": 2}
    whole = ids(listed(api, kind, {**query, "limit": 4})["items"])
    pages = [listed(api, kind, {**query, "page": number}) for number in (1, 2)]
    assert [ids(page["items"]) for page in pages] == [whole[:2], whole[2:]]
    after = listed(api, kind, {**query, "after": pages[0]["next"]})
    assert after["items"] == pages[1]["items"]
    beyond = listed(api, kind, {**query, "page": 100_000})
    assert (beyond["items"], beyond["next"]) == ([], None)
    back = listed(api, kind, {**query, "before": beyond["previous"]})
    assert back["next"] is None
    if kind.of_group(group):
        assert ids(back["items"]) == ids(listed(api, kind, {**query, "limit": 5})["items"])[3:]


def test_an_empty_page_leads_back_to_what_there_is(api: Service, kind: Kind) -> None:
    """Behind the last item to that one too, before the first to it; in an empty list nowhere."""
    group = kind.group(api)
    made = kind.make(api, group, 3)
    query = {**kind.of_group(group), "order": "-id", "limit": 2}
    name = f"{kind.name} -id"
    last = ids(list_of_all(api, kind, query))[-1]
    empty = listed(api, kind, {**query, "after": cursors.encode(name, last, last)})
    assert (empty["items"], empty["next"]) == ([], None)
    page = listed(api, kind, {**query, "before": empty["previous"]})
    assert page["items"] == list_of_all(api, kind, query)[-2:]
    assert (page["next"], page["previous"] is None) == (None, False)
    first = made[-1]["id"]
    answer = ask(api, kind, {**query, "before": cursors.encode(name, first, first)})
    assert (answer.json["items"], answer.json["previous"]) == ([], None)
    assert api.get(links(answer)["next"]).json == listed(api, kind, query)
    if kind.of_group(group):
        api.ask("DELETE", f"{kind.path}/batch", {"ids": ids(made)})
        for place in ({"after": cursors.encode(name, first, first)}, {"page": 9}):
            gone = listed(api, kind, {**query, **place})
            assert (gone["items"], gone["next"], gone["previous"]) == ([], None, None)


def list_of_all(api: Service, kind: Kind, query: Mapping[str, Any]) -> list[Document]:
    whole = {**query, "limit": 100}
    first = listed(api, kind, whole)
    pages = [first, *walk(api, kind, whole, first)]
    return [item for page in pages for item in page["items"]]


def test_the_cursor_of_the_longest_title_is_taken(api: Service) -> None:
    """Of 500 control characters, which JSON writes in six letters each."""
    title = "\x01" * 500  # of both: no other book's title is between them
    made = api.ask("POST", "/books/batch", {"items": [{"title": title}] * 2}).json
    cursor = cursors.encode("books title", title, made["items"][0]["id"])
    assert len(cursor) > 4_000
    query = urlencode({"order": "title", "after": cursor, "limit": 1})
    assert api.get(f"/books?{query}").json["items"] == made["items"][1:]
    api.ask("DELETE", "/books/batch", {"ids": ids(made["items"])})


def test_the_total_is_given_when_it_is_asked_for(api: Service, kind: Kind) -> None:
    """It counts what the filters find, whatever the page."""
    group = kind.group(api)
    query = {**kind.of_group(group), "limit": 1, "total": "true"}
    before = listed(api, kind, query)["total"]
    kind.make(api, group, 3)
    page = listed(api, kind, query)
    assert page["total"] == before + 3
    assert list(page) == ["items", "next", "previous", "total"]
    assert listed(api, kind, {**query, "after": page["next"]})["total"] == before + 3
    assert "total" not in listed(api, kind, {"limit": 1})


@pytest.mark.parametrize(("kind", "order"), ORDERS)
def test_cursors_lead_through_the_whole_list_and_back(api: Service, kind: Kind, order: str) -> None:
    """Each item once, in order, and the same pages on the way back."""
    group = kind.group(api)
    made = kind.make(api, group, 7)
    api.ask("PATCH", f"{kind.path}/{made[2]['id']}", kind.patch(mark()))
    made = api.ask("POST", f"{kind.path}/batch-get", {"ids": ids(made)}).json["items"]
    query = {**kind.of_group(group), "order": order, "limit": 3 if kind.of_group(group) else 97}
    first = listed(api, kind, query)
    pages = [first, *walk(api, kind, query, first)]
    items = [item for page in pages for item in page["items"]]
    assert len(set(ids(items))) == len(items)
    mine = [item for item in items if item["id"] in ids(made)]
    assert mine == in_order(made, order)
    assert first["previous"] is None
    back = list(walk(api, kind, query, pages[-1], forth=False))
    assert [page["items"] for page in back[::-1]] == [page["items"] for page in pages[:-1]]


def test_links_lead_to_the_neighbours(api: Service, kind: Kind) -> None:
    """The Link header has the same places, with the filters and the order kept."""
    group = kind.group(api)
    kind.make(api, group, 3)
    query = {**kind.of_group(group), "order": "-id", "limit": 1}
    first = ask(api, kind, query)
    second = api.get(links(first)["next"])
    assert second.json == listed(api, kind, {**query, "after": first.json["next"]})
    assert set(links(first)) == {"next"}
    assert set(links(second)) == {"next", "prev"}
    assert api.get(links(second)["prev"]).json["items"] == first.json["items"]


def links(answer: Answer) -> dict[str, str]:
    found = re.findall(r'<([^>]*)>; rel="(\w+)"', answer.headers["Link"])
    return {relation: url for url, relation in found}


def test_a_garbled_cursor_is_a_422(api: Service, kind: Kind) -> None:
    """Cut, changed, of another order or of another resource."""
    group = kind.group(api)
    kind.make(api, group, 2)
    query = {**kind.of_group(group), "limit": 1}
    cursor = listed(api, kind, query)["next"]
    other = KINDS[KINDS.index(kind) - 1]
    theirs = other.group(api)
    other.make(api, theirs, 2)
    foreign = listed(api, other, {**other.of_group(theirs), "limit": 1})["next"]
    middle = len(cursor) // 2
    changed = cursor[:middle] + ("A" if cursor[middle] != "A" else "B") + cursor[middle + 1 :]
    for garbled in (cursor[:-3], changed, cursor + "AAAA", foreign, "é", "=" * 9,
                    cursor + "=", f"!{cursor}", f"{cursor[:8]}*\n{cursor[8:]}"):  # fmt: skip
        for place in ("after", "before"):
            answer = ask(api, kind, {**query, place: garbled})
            assert answer.status == 422, garbled
            assert answer.json["errors"][0]["name"] == place
    assert ask(api, kind, {**query, "after": cursor, "order": "-id"}).status == 422
    assert ask(api, kind, {**query, "after": cursor}).status == 200


@pytest.mark.parametrize(("kind", "order"), ORDERS)
def test_cursors_keep_their_place_while_items_come_and_go(
    api: Service, kind: Kind, order: str
) -> None:
    """Who stays is seen once, in order; who goes, even at the cursor, shifts nothing."""
    chance = random.Random(order)
    group = kind.group(api)
    made = kind.make(api, group, 24)
    lasting = {item["id"] for item in made[::2]}
    doomed = [item["id"] for item in made if item["id"] not in lasting]
    chance.shuffle(doomed)
    query = {**kind.of_group(group), "order": order, "limit": 3 if kind.of_group(group) else 97}
    first = listed(api, kind, query)
    forth, seen = True, [first]
    for forth in (True, False):
        for page in walk(api, kind, query, seen[-1], forth):
            seen.append(page)
            kind.make(api, group, 1)
            if doomed:
                api.ask("DELETE", f"{kind.path}/{doomed.pop()}")
        items = [item for page in seen for item in page["items"]]
        kept = [item["id"] for item in items if item["id"] in lasting]
        expected = ids(in_order([item for item in made if item["id"] in lasting], order))
        if forth:
            assert kept == expected
            seen = [seen[-1]]
        else:
            assert sorted(kept) == sorted(expected)
    last = [item for page in seen[::-1] for item in page["items"] if item["id"] in lasting]
    assert ids(last) == expected


def test_every_filter_finds_what_has_its_value(api: Service, kind: Kind) -> None:
    """All of that, and nothing else; together they narrow the list."""
    group = kind.group(api)
    item, _ = kind.make(api, group, 2)
    found_by = kind.found_by(item)
    for name, value in found_by.items():
        query = {name: value, "limit": 100, "order": "-id"}
        first, found = listed(api, kind, query), []
        # The ids that two workers give in one second have no order: it may be on a later page.
        for page in chain([first], walk(api, kind, query, first)):
            found += page["items"]
            if item["id"] in ids(found):
                break
        assert item["id"] in ids(found), name
        assert {str(kind.shown(one, name)) for one in found} == {str(value)}, name
    assert ids(listed(api, kind, found_by)["items"]) == [item["id"]]


def test_a_value_that_nothing_can_have_is_a_422(api: Service, kind: Kind) -> None:
    """A filter is checked as the field is."""
    names = kind.found_by(kind.make(api, kind.group(api), 1)[0])
    for name in sorted(names.keys() - kind.may_be_empty):
        for method in ("GET", "DELETE"):
            answer = api.ask(method, f"{kind.path}?{name}=")
            assert answer.status == 422, name
            assert answer.json["errors"][0]["name"] == name


def test_deleting_by_field_says_how_many(api: Service, kind: Kind) -> None:
    """All that have the values go, the others stay; without a field nothing does."""
    group = kind.group(api)
    items = kind.make(api, group, 3)
    before = listed(api, kind, {"limit": 1, "total": "true"})["total"]
    assert api.ask("DELETE", kind.path).status == 422
    assert api.ask("DELETE", f"{kind.path}?sesame=1").status == 422
    query = urlencode(kind.found_by(items[1]))
    for deleted in (1, 0):
        answer = api.ask("DELETE", f"{kind.path}?{query}")
        assert (answer.status, answer.json) == (200, {"deleted": deleted})
    assert listed(api, kind, {"limit": 1, "total": "true"})["total"] == before - 1
    left = api.ask("POST", f"{kind.path}/batch-get", {"ids": ids(items)}).json
    assert left["missing"] == [items[1]["id"]]
