"""Batches of a resource over HTTP: 1 to 1,000 items, all or nothing."""

import pytest

from tests.contract.resources import KINDS, Document, Kind, kind, mark
from tests.helpers.support import IS_LONG, Answer, Service

__all__ = ["kind"]

MOST = 1_000
SLOW = ("messages", "products")  # the embedded engine takes ten seconds for a thousand


def ask(api: Service, kind: Kind, method: str, body: Document, path: str = "batch") -> Answer:
    return api.ask(method, f"{kind.path}/{path}", body)


def there(api: Service, kind: Kind, items: list[Document]) -> list[Document]:
    """Return what is there of *items* now."""
    found = ask(api, kind, "POST", {"ids": [item["id"] for item in items]}, "batch-get")
    assert found.status == 200
    return list(found.json["items"])


def total(api: Service, kind: Kind) -> int:
    return int(api.get(f"{kind.path}?limit=1&total=true").json["total"])


def test_many_are_made_read_changed_and_deleted(api: Service, kind: Kind) -> None:
    """A thousand where a thousand are quick; all of them, in the order that was asked for."""
    most = 100 if kind.name in SLOW and not IS_LONG else MOST
    group, before = kind.group(api), total(api, kind)
    sent = [kind.new(group, mark()) for _ in range(most)]
    made = ask(api, kind, "POST", {"items": sent})
    assert made.status == 201, made.body[:500]
    items = made.json["items"]
    known = [name for name in sent[0] if items[0].get(name) == sent[0][name]]
    assert known
    assert [[item[name] for name in known] for item in items] == [
        [body[name] for name in known] for body in sent
    ]
    assert len({item["id"] for item in items}) == most
    assert total(api, kind) == before + most

    ids = [item["id"] for item in reversed(items)]
    found = ask(api, kind, "POST", {"ids": ids}, "batch-get").json
    shown = [{n: v for n, v in item.items() if n not in kind.shown_once} for item in items]
    assert (found["items"], found["missing"]) == (shown[::-1], [])

    patches = [{"id": item_id, "patch": kind.patch(mark())} for item_id in ids]
    changed = ask(api, kind, "PATCH", {"items": patches})
    assert changed.status == 200, changed.body[:500]
    assert [item["id"] for item in changed.json["items"]] == ids
    assert {item["version"] for item in changed.json["items"]} == {2}
    for patch, item in zip(patches, changed.json["items"], strict=True):
        assert {name: item[name] for name in patch["patch"]} == patch["patch"]
    assert there(api, kind, items) == changed.json["items"][::-1]

    deleted = ask(api, kind, "DELETE", {"ids": ids})
    assert (deleted.status, deleted.json) == (200, {"deleted": most})
    assert total(api, kind) == before


@pytest.mark.parametrize("count", [0, MOST + 1])
def test_none_and_too_many_are_a_422(api: Service, kind: Kind, count: int) -> None:
    """Of whatever kind the batch is."""
    body = kind.new(kind.group(api), mark())
    patch = {"id": kind.missing, "patch": {}}
    answers = [
        ask(api, kind, "POST", {"items": [body] * count}),
        ask(api, kind, "PATCH", {"items": [patch] * count}),
        ask(api, kind, "DELETE", {"ids": [kind.missing] * count}),
        ask(api, kind, "POST", {"ids": [kind.missing] * count}, "batch-get"),
    ]
    assert [answer.status for answer in answers] == [422] * 4


def test_a_batch_with_a_wrong_item_makes_none(api: Service, kind: Kind) -> None:
    """The pointer leads into the batch."""
    group, before = kind.group(api), total(api, kind)
    wrong, pointer = kind.wrong
    items = [kind.new(group, mark()), {**kind.new(group, mark()), **wrong}]
    answer = ask(api, kind, "POST", {"items": items})
    assert answer.status == 422
    assert [fault["pointer"] for fault in answer.json["errors"]] == [f"/items/1{pointer}"]
    assert total(api, kind) == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.is_unique], ids=str)
def test_a_batch_with_a_conflict_makes_none(api: Service, kind: Kind) -> None:
    """Be it with what is stored, or with another item of the batch."""
    group = kind.group(api)
    body = kind.new(group, mark())
    assert api.ask("POST", kind.path, body).status == 201
    before = total(api, kind)
    new = kind.new(group, mark())
    assert ask(api, kind, "POST", {"items": [new, body]}).status == 409
    assert ask(api, kind, "POST", {"items": [new, new]}).status == 409
    assert total(api, kind) == before


def test_missing_ids_of_a_read_are_listed(api: Service, kind: Kind) -> None:
    """They are no error there; the others come in the order asked for."""
    items = kind.make(api, kind.group(api), 2)
    ids = [items[1]["id"], kind.missing, items[0]["id"]]
    found = ask(api, kind, "POST", {"ids": ids}, "batch-get")
    assert found.status == 200
    assert [item["id"] for item in found.json["items"]] == [items[1]["id"], items[0]["id"]]
    assert found.json["missing"] == [kind.missing]


def test_a_missing_id_changes_none_and_deletes_none(api: Service, kind: Kind) -> None:
    """The 404 lists what is not there."""
    items = kind.make(api, kind.group(api), 2)
    before = there(api, kind, items)
    ids = [items[0]["id"], kind.missing, items[1]["id"]]
    patches = [{"id": item_id, "patch": kind.patch(mark())} for item_id in ids]
    for answer in (
        ask(api, kind, "PATCH", {"items": patches}),
        ask(api, kind, "DELETE", {"ids": ids}),
    ):
        assert (answer.status, answer.json["missing"]) == (404, [kind.missing])
    assert there(api, kind, items) == before


def test_another_version_of_one_changes_none(api: Service, kind: Kind) -> None:
    """Each item of a batch may say which version it is meant for."""
    items = kind.make(api, kind.group(api), 2)
    before = there(api, kind, items)
    patches = [
        {"id": items[0]["id"], "patch": kind.patch(mark()), "version": 1},
        {"id": items[1]["id"], "patch": kind.patch(mark()), "version": 2},
    ]
    assert ask(api, kind, "PATCH", {"items": patches}).status == 412
    assert there(api, kind, items) == before
    patches[1]["version"] = 1
    assert ask(api, kind, "PATCH", {"items": patches}).status == 200


def test_a_wrong_patch_of_one_changes_none(api: Service, kind: Kind) -> None:
    """The pointer leads to the member of that patch."""
    items = kind.make(api, kind.group(api), 2)
    before = there(api, kind, items)
    wrong, pointer = kind.wrong
    patches = [
        {"id": items[0]["id"], "patch": kind.patch(mark())},
        {"id": items[1]["id"], "patch": wrong},
    ]
    answer = ask(api, kind, "PATCH", {"items": patches})
    assert answer.status == 422
    assert [fault["pointer"] for fault in answer.json["errors"]] == [f"/items/1/patch{pointer}"]
    assert there(api, kind, items) == before


def test_an_id_given_twice_is_a_422(api: Service, kind: Kind) -> None:
    """It is undefined which of two patches counts; the pointer names the second."""
    [item] = kind.make(api, kind.group(api), 1)
    patch = {"id": item["id"], "patch": kind.patch(mark())}
    for answer, pointer in (
        (ask(api, kind, "PATCH", {"items": [patch, patch]}), "/items/1/id"),
        (ask(api, kind, "DELETE", {"ids": [item["id"]] * 2}), "/ids/1"),
        (ask(api, kind, "POST", {"ids": [item["id"]] * 2}, "batch-get"), "/ids/1"),
    ):
        assert (answer.status, answer.json["errors"][0]["pointer"]) == (422, pointer)
