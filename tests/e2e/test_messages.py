"""``/messages`` over HTTP: what is special about them, their order."""

import itertools
from typing import Any

import pytest

from tests.helpers.support import Service

_tasks = itertools.count(6_000_000)
ROLES = ("system", "user", "assistant", "tool")


def new_message(task_id: int, content: str, **more: object) -> dict[str, object]:
    return {"task_id": task_id, "role": "user", "content": content, **more}


def contents(api: Service, query: str) -> list[str]:
    """Return what is said in all pages of a list."""
    said: list[str] = []
    after = ""
    while True:
        page = api.get(f"/messages?{query}{after}").json
        said += [item["content"] for item in page["items"]]
        if page["next"] is None:
            return said
        after = f"&after={page['next']}"


def test_messages_come_in_the_order_in_which_they_were_sent(api: Service) -> None:
    """One by one, in batches, with keys or without; backwards when asked so."""
    task = next(_tasks)
    sent = [f"message {number}" for number in range(16)]
    said = iter(sent)
    for key in ({}, {"Idempotency-Key": f"order-{task}"}):
        for _ in range(3):
            assert api.ask("POST", "/messages", new_message(task, next(said))).status == 201
        batch = [new_message(task, text) for text in itertools.islice(said, 4)]
        assert api.ask("POST", "/messages/batch", {"items": batch}, key).status == 201
        last = new_message(task, next(said))
        one = {name: f"{value}-one" for name, value in key.items()}
        assert api.ask("POST", "/messages", last, one).status == 201
    assert contents(api, f"task_id={task}&limit=3") == sent
    assert contents(api, f"task_id={task}&limit=7&order=-created_at") == sent[::-1]


def test_a_batch_that_is_sent_again_is_stored_once_in_its_order(api: Service) -> None:
    """The first answer, byte by byte."""
    task = next(_tasks)
    batch = {"items": [new_message(task, f"{number}") for number in range(30)]}
    key = {"Idempotency-Key": f"batch-{task}"}
    first, again = (api.ask("POST", "/messages/batch", batch, key) for _ in range(2))
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert contents(api, f"task_id={task}&limit=100") == [f"{number}" for number in range(30)]


def test_messages_are_found_by_role_and_agent(api: Service) -> None:
    """An agent is optional, and shown as null when there is none."""
    task = next(_tasks)
    for role in ROLES:
        agent: dict[str, Any] = {"agent_id": 7} if role in ("assistant", "tool") else {}
        made = api.ask("POST", "/messages", new_message(task, role, role=role, **agent))
        assert (made.status, made.json["agent_id"]) == (201, agent.get("agent_id"))
    for role in ROLES:
        assert contents(api, f"task_id={task}&role={role}") == [role]
    assert contents(api, f"task_id={task}&agent_id=7") == ["assistant", "tool"]
    assert api.get("/messages?role=nobody").status == 422


@pytest.mark.parametrize(
    "content", ["x", "ü" * 100_000, "a\nb\t\u2028"], ids=["one", "most", "odd"]
)
def test_content_comes_back_as_it_was(api: Service, content: str) -> None:
    """One character to a hundred thousand."""
    made = api.ask("POST", "/messages", new_message(next(_tasks), content))
    assert made.status == 201
    path = f"/messages/{made.json['id']}"
    assert api.get(path).json["content"] == content
    assert api.ask("DELETE", path).status == 204


@pytest.mark.parametrize("content", ["", "x" * 100_001, "a\0b", 5, None])
def test_bad_content_is_a_422(api: Service, content: object) -> None:
    """Empty, too long, with a NUL, no text."""
    assert api.ask("POST", "/messages", new_message(1, content)).status == 422  # type: ignore[arg-type]
