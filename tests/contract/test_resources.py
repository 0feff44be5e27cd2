"""One item of a resource over HTTP: the same words and shapes for all of them."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tests.contract.resources import Document, Kind, kind, mark
from tests.helpers.support import Answer, Service

__all__ = ["kind"]

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
ONE = ["GET", "PUT", "PATCH", "DELETE"]


def decoded(kind: Kind, item: Document) -> Document:
    """Return *item* when it is of its record's type and nothing else, its members in order."""
    msgspec.convert(item, kind.item, strict=True, str_keys=False)
    assert list(item) == [name for name in kind.item.__struct_fields__ if name in item]
    assert STAMP.fullmatch(item["created_at"])
    assert STAMP.fullmatch(item["updated_at"])
    return item


def create(api: Service, kind: Kind, **more: Any) -> tuple[Answer, str]:
    """Create an item of a group of its own; return the answer and its path."""
    created = api.ask("POST", kind.path, kind.new(kind.group(api), mark()), **more)
    assert created.status == 201, created.body
    return created, created.headers["Location"]


def without(item: Document, names: frozenset[str]) -> Document:
    return {name: value for name, value in item.items() if name not in names}


def require_once(kind: Kind) -> None:
    if not kind.is_idempotent:
        pytest.skip("what is shown once is not shown again: tests/e2e/test_auth.py")


def version(answer: Answer) -> str:
    return str(answer.headers["ETag"])


def test_an_item_lives_through_its_whole_life(api: Service, kind: Kind) -> None:
    """Created, read, replaced, changed and deleted, each answer telling what is stored."""
    group = kind.group(api)
    sent = kind.new(group, mark())
    created = api.ask("POST", kind.path, sent)
    assert (created.status, version(created)) == (201, '"1"')
    item = created.json
    assert created.headers["Location"] == f"{kind.path}/{item['id']}"
    assert item["version"] == 1
    assert item["created_at"] == item["updated_at"]
    path = created.headers["Location"]
    read = api.get(path)
    assert (read.status, version(read)) == (200, '"1"')
    assert decoded(kind, read.json) == without(item, kind.shown_once)
    assert [name for name in item if name not in kind.shown_once] == list(read.json)

    replaced = api.ask("PUT", path, kind.new(group, mark()))
    assert (replaced.status, version(replaced)) == (200, '"2"')
    after = decoded(kind, replaced.json)
    assert (after["version"], after["id"]) == (2, item["id"])
    assert after["created_at"] == item["created_at"]
    assert after["updated_at"] > item["updated_at"]
    assert api.get(path).body == replaced.body

    patch = kind.patch(mark())
    changed = api.ask("PATCH", path, patch)
    assert (changed.status, version(changed)) == (200, '"3"')
    assert {name: changed.json[name] for name in patch} == patch
    untouched = [name for name in after if name not in (*patch, "updated_at", "version")]
    assert [changed.json[name] for name in untouched] == [after[name] for name in untouched]
    assert decoded(kind, changed.json)["updated_at"] > after["updated_at"]
    assert api.get(path).body == changed.body

    deleted = api.ask("DELETE", path)
    assert (deleted.status, deleted.body) == (204, b"")
    assert [api.ask(method, path, sent if method == "PUT" else {}).status for method in ONE] == (
        [404] * len(ONE)
    )


@pytest.mark.parametrize("method", ONE)
def test_what_is_not_there_is_a_404(api: Service, kind: Kind, method: str) -> None:
    """Also for what can be no id; a problem document says which."""
    body = kind.new(kind.group(api), mark()) if method == "PUT" else {}
    for item_id in (kind.missing, "x", "9" * 40):
        answer = api.ask(method, f"{kind.path}/{item_id}", body)
        assert (answer.status, answer.json["status"]) == (404, 404)
        assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_wrong_member_is_a_422_with_a_pointer(api: Service, kind: Kind) -> None:
    """On creation, replacement and change; nothing is stored of it."""
    created, path = create(api, kind)
    wrong, pointer = kind.wrong
    body = {**kind.new(kind.group(api), mark()), **wrong}
    for method, where, sent in (
        ("POST", kind.path, body),
        ("PUT", path, body),
        ("PATCH", path, wrong),
        ("PATCH", path, {**kind.patch(mark()), **wrong}),
    ):
        answer = api.ask(method, where, sent)
        assert answer.status == 422, (method, answer.body)
        assert pointer in [fault["pointer"] for fault in answer.json["errors"]]
    assert api.get(path).json == without(created.json, kind.shown_once)


def test_an_unknown_member_is_a_422(api: Service, kind: Kind) -> None:
    """What would be ignored is refused, also in a patch; so are the store's own members."""
    _, path = create(api, kind)
    body = kind.new(kind.group(api), mark())
    for name in ("sesame", "id", "version", "created_at"):
        assert api.ask("POST", kind.path, {**body, name: 1}).status == 422
        assert api.ask("PATCH", path, {name: 1}).status == 422


def test_null_in_a_patch_takes_a_member_away(api: Service, kind: Kind) -> None:
    """It is its default then; what has none is missed (RFC 7396)."""
    _, path = create(api, kind)
    needed = next(iter(kind.patch("x")))
    missed = api.ask("PATCH", path, {needed: None})
    assert missed.status == 422
    assert needed in missed.json["detail"]
    if kind.default is not None:
        name, value = kind.default
        assert api.ask("PATCH", path, {name: None}).json[name] == value


def test_the_same_twice_is_a_conflict_where_it_must_be_unique(api: Service, kind: Kind) -> None:
    """On creation, replacement and change; elsewhere two may be alike."""
    body = kind.new(kind.group(api), mark())
    first, second = (api.ask("POST", kind.path, body) for _ in range(2))
    assert first.status == 201
    if not kind.is_unique:
        assert (second.status, second.json["id"] != first.json["id"]) == (201, True)
        return
    assert (second.status, second.json["code"]) == (409, "conflict")
    other, path = create(api, kind)
    assert api.ask("PUT", path, body).status == 409
    assert api.get(path).json == without(other.json, kind.shown_once)


def test_a_client_with_this_version_is_sent_no_other(api: Service, kind: Kind) -> None:
    """If-None-Match: 304 without a body while nothing changed, and the item when it has."""
    created, path = create(api, kind)
    seen = {"If-None-Match": version(created)}
    for tag in (version(created), f"W/{version(created)}", f'"0", {version(created)}', "*"):
        answer = api.get(path, headers={"If-None-Match": tag})
        assert (answer.status, answer.body) == (304, b""), tag
        assert version(answer) == version(created)
    assert api.get(path, headers={"If-None-Match": '"0"'}).status == 200
    api.ask("PATCH", path, kind.patch(mark()))
    later = api.get(path, headers=seen)
    assert (later.status, version(later)) == (200, '"2"')


def test_who_saw_another_version_changes_nothing(api: Service, kind: Kind) -> None:
    """If-Match: 412 for a replacement, a change and a deletion."""
    created, path = create(api, kind)
    changed = api.ask("PATCH", path, kind.patch(mark()))
    body = kind.new(kind.group(api), mark())

    def ask(method: str, tag: str) -> int:
        sent: Mapping[str, Document | None] = {
            "PUT": body,
            "PATCH": kind.patch(mark()),
            "DELETE": None,
        }
        return api.ask(method, path, sent[method], {"If-Match": tag}).status

    for tag in (version(created), '"99"', '"x"', f"W/{version(created)}"):
        assert [ask(method, tag) for method in ("PUT", "PATCH", "DELETE")] == [412] * 3, tag
    assert api.get(path).body == changed.body
    assert ask("PUT", f'"99", {version(changed)}') == 200
    assert ask("PATCH", 'W/"3"') == 200  # a proxy that compresses made it weak
    assert ask("PATCH", "*") == 200
    assert ask("DELETE", '"5"') == 204


def test_the_same_key_gives_the_first_answer_again(api: Service, kind: Kind) -> None:
    """However often it is sent, also after the item changed; there is one item."""
    require_once(kind)
    body = kind.new(kind.group(api), mark())
    key = {"Idempotency-Key": f"once-{mark()}"}
    first = api.ask("POST", kind.path, body, key)
    assert first.status == 201
    path = first.headers["Location"]
    assert api.ask("PATCH", path, kind.patch(mark())).status == 200
    again = api.ask("POST", kind.path, body, key)
    assert (again.status, again.body) == (201, first.body)
    assert [again.headers[name] for name in ("Location", "ETag")] == [path, version(first)]


def test_a_key_with_another_body_is_a_422(api: Service, kind: Kind) -> None:
    """It was meant for something else, and nothing is stored."""
    require_once(kind)
    group = kind.group(api)
    key = {"Idempotency-Key": f"once-{mark()}"}
    assert api.ask("POST", kind.path, kind.new(group, mark()), key).status == 201
    other = kind.new(group, mark())
    answer = api.ask("POST", kind.path, other, key)
    assert (answer.status, answer.json["code"]) == (422, "idempotency_key_reused")
    batch = api.ask("POST", f"{kind.path}/batch", {"items": [other]}, key)
    assert (batch.status, batch.json["code"]) == (422, "idempotency_key_reused")
    assert api.ask("POST", kind.path, other).status == 201  # not stored: no conflict


def test_a_batch_happens_once_too(api: Service, kind: Kind) -> None:
    """The same items, with the same ids, and no more of them."""
    require_once(kind)
    group = kind.group(api)
    batch = {"items": [kind.new(group, mark()) for _ in range(3)]}
    key = {"Idempotency-Key": f"once-{mark()}"}
    path = f"{kind.path}/batch"
    first, again = (api.ask("POST", path, batch, key) for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body
    other = api.ask("POST", path, {"items": batch["items"][:2]}, key)
    assert (other.status, other.json["code"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize("key", ["", "with blank", "x" * 256, "\xe9"])
def test_a_key_that_is_none_is_a_422(api: Service, kind: Kind, key: str) -> None:
    """1 to 255 visible ASCII characters."""
    body = kind.new(kind.group(api), mark())
    assert api.ask("POST", kind.path, body, {"Idempotency-Key": key}).status == 422


def test_a_method_that_is_not_there_is_a_405_with_allow(api: Service, kind: Kind) -> None:
    """The answer lists what would be allowed."""
    _, path = create(api, kind)
    for where, expected in (
        (kind.path, {"GET", "POST", "DELETE"}),
        (path, {"GET", "PUT", "PATCH", "DELETE"}),
        (f"{kind.path}/batch", {"POST", "PATCH", "DELETE"}),
        (f"{kind.path}/batch-get", {"POST"}),
    ):
        answer = api.ask("TRACE", where)
        assert answer.status == 405
        assert expected <= set(answer.headers["Allow"].split(", ")), where


def test_a_body_that_is_no_json_is_reported(api: Service, kind: Kind) -> None:
    """400 for what cannot be read, 415 for another media type, 422 for another shape."""
    json = {"Content-Type": "application/json"}
    _, path = create(api, kind)
    for method, where in (("POST", kind.path), ("PUT", path), ("POST", f"{kind.path}/batch")):
        for sent, status in ((b'{"', 400), (b'"\xff"', 400), (b"[]", 422), (b"[" * 9_999, 422)):
            assert api.ask(method, where, sent, json).status == status, (where, sent[:9])
        assert api.ask(method, where, b"x=1", {"Content-Type": "text/plain"}).status == 415
