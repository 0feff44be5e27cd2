"""Whole lists as lines of JSON: what the pages have, in the same order."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.contract.resources import Document, Kind, kind
from tests.helpers.support import Answer, Service

__all__ = ["kind"]

LINES = {"Accept": "application/x-ndjson"}
PAGE = 100
COUNT = 2 * PAGE + 1


def ask(api: Service, kind: Kind, query: Mapping[str, Any]) -> Answer:
    return api.get(f"{kind.path}?{urlencode(query)}", headers=LINES)


def streamed(api: Service, kind: Kind, query: Mapping[str, Any]) -> list[Document]:
    answer = ask(api, kind, query)
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == LINES["Accept"]
    assert answer.body == b"" or answer.body.endswith(b"\n")
    return [json.loads(line) for line in answer.body.splitlines()]


def paged(api: Service, kind: Kind, query: Mapping[str, Any]) -> list[Document]:
    items: list[Document] = []
    place: dict[str, str] = {}
    while True:
        page = api.get(f"{kind.path}?{urlencode({**query, 'limit': PAGE, **place})}").json
        items += page["items"]
        if page["next"] is None:
            return items
        place = {"after": page["next"]}


def test_a_stream_has_what_the_pages_have(api: Service, kind: Kind) -> None:
    """All of it, in each order, with the same filters, and behind the same cursors."""
    group = kind.group(api)
    made = kind.make(api, group, COUNT)
    for number, order in enumerate(kind.orders):
        query = {**kind.of_group(group), "order": f"{'-' * (number % 2)}{order}"}
        items = streamed(api, kind, query)
        assert items == paged(api, kind, query)
        assert {item["id"] for item in made} <= {item["id"] for item in items}
    page = api.get(f"{kind.path}?{urlencode({**query, 'limit': 3})}").json
    assert streamed(api, kind, {**query, "after": page["next"]}) == items[3:]


def test_a_list_of_nothing_has_no_line(api: Service, kind: Kind) -> None:
    """That is an answer, and no error."""
    [item] = kind.make(api, kind.group(api), 1)
    query = kind.found_by(item)
    assert [one["id"] for one in streamed(api, kind, query)] == [item["id"]]
    assert api.ask("DELETE", f"{kind.path}/{item['id']}").status == 204
    assert streamed(api, kind, query) == []


@pytest.mark.parametrize(
    "query", ["limit=5", "page=1", "total=true", "before=x", "after=x", "order=x", "sesame=1"]
)
def test_a_query_that_means_nothing_for_a_whole_list_is_a_422(api: Service, query: str) -> None:
    """A fault is known before the first line, and is reported as ever."""
    answer = api.get(f"/states?{query}", headers=LINES)
    assert (answer.status, answer.json["code"]) == (422, "invalid_request")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json["errors"][0]["name"] == query.partition("=")[0]


def test_only_lists_come_as_lines(api: Service) -> None:
    """An item is refused before it is read; HEAD has no lines."""
    assert api.get("/agents/1", headers=LINES).status == 406
    head = api.ask("HEAD", "/agents", headers=LINES)
    assert (head.status, head.body) == (200, b"")
