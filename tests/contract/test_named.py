"""Batches by name over HTTP, of the resources whose items have names of their own."""

import pytest

from tests.contract.resources import AGENTS, AUTHORS, GENRES, KEYS, Document, Kind, mark
from tests.helpers.support import Answer, Service

NAMED = pytest.mark.parametrize("kind", [AGENTS, AUTHORS, GENRES, KEYS], ids=str)


def get(api: Service, kind: Kind, names: list[str]) -> Answer:
    return api.ask("POST", f"{kind.path}/batch-get/by-name", {"names": names})


def delete(api: Service, kind: Kind, names: list[str]) -> Answer:
    return api.ask("DELETE", f"{kind.path}/batch/by-name", {"names": names})


def make(api: Service, kind: Kind, count: int) -> tuple[list[Document], list[str]]:
    """Create some items; return them without what is shown once, and their names."""
    made = kind.make(api, {}, count)
    shown = [{k: v for k, v in item.items() if k not in kind.shown_once} for item in made]
    return shown, [item["name"] for item in made]


@NAMED
def test_many_are_read_by_name(api: Service, kind: Kind) -> None:
    """In the order of the names, with those that are missing; names have any characters."""
    made, names = make(api, kind, 3)
    odd = kind.new({}, f"{mark()} 'é\"\\,{{}}")
    assert api.ask("POST", kind.path, odd).status == 201
    asked = [names[2], "nothing is called this", odd["name"], names[0]]
    answer = get(api, kind, asked)
    assert answer.status == 200
    assert [item["name"] for item in answer.json["items"]] == [names[2], odd["name"], names[0]]
    assert [answer.json["items"][number] for number in (0, 2)] == [made[2], made[0]]
    assert answer.json["missing"] == ["nothing is called this"]


@NAMED
def test_many_are_deleted_by_name_or_none(api: Service, kind: Kind) -> None:
    """A name that is missing keeps all of them, and is listed."""
    _, names = make(api, kind, 3)
    gone = delete(api, kind, [*names[:2], "nothing is called this"])
    assert (gone.status, gone.json["missing"]) == (404, ["nothing is called this"])
    assert get(api, kind, names).json["missing"] == []
    assert delete(api, kind, names[:2]).json == {"deleted": 2}
    assert get(api, kind, names).json["missing"] == names[:2]


@NAMED
def test_names_that_cannot_be_are_a_422(api: Service, kind: Kind) -> None:
    """None, too many, an empty one, and one given twice, with its place."""
    for names, pointer in (
        ([], "/names"),
        (["x"] * 1_001, "/names"),
        (["x", ""], "/names/1"),
        (["x", "y", "x"], "/names/2"),
    ):
        for answer in (get(api, kind, names), delete(api, kind, names)):
            assert answer.status == 422
            assert answer.json["errors"][0]["pointer"] == pointer


def test_an_author_that_a_book_shows_keeps_the_others(api: Service) -> None:
    """A conflict deletes nothing."""
    _, names = make(api, AUTHORS, 2)
    assert api.ask("POST", "/books", {"title": mark(), "authors": names[:1]}).status == 201
    assert delete(api, AUTHORS, names[::-1]).status == 409
    assert get(api, AUTHORS, names).json["missing"] == []


@NAMED
def test_one_is_found_by_its_name(api: Service, kind: Kind) -> None:
    """As by its id, with a tag of its own."""
    [made], [name] = make(api, kind, 1)
    answer = api.get(f"{kind.path}/by-name/{name}")
    assert (answer.status, answer.json) == (200, made)
    assert answer.headers["ETag"] == f'"{made["id"]}-1"'
    assert api.get(f"{kind.path}/by-name/x{name}").status == 404
