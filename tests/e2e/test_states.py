"""``/states`` over HTTP."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helpers.support import Service

_numbers = itertools.count(5_000_000)


def new_state(**more: object) -> dict[str, object]:
    """Return a state of a task that no other test uses."""
    return {"task_id": next(_numbers), "agent_id": 1, "data": {"step": 1}, **more}


def test_a_state_lives_through_its_whole_life(api: Service) -> None:
    """Created, read, replaced and deleted, each answer telling what is stored."""
    sent = new_state()
    created = api.ask("POST", "/states", sent)
    assert created.status == 201
    state = created.json
    assert created.headers["Location"] == f"/states/{state['id']}"
    assert {name: state[name] for name in sent} == sent
    path = f"/states/{state['id']}"
    assert api.get(path).body == created.body

    replaced = api.ask("PUT", path, {**sent, "data": {"step": 2}})
    assert (replaced.status, replaced.json["data"]) == (200, {"step": 2})
    assert replaced.json["created_at"] == state["created_at"]
    assert replaced.json["updated_at"] >= state["updated_at"]
    assert api.get(path).body == replaced.body

    deleted = api.ask("DELETE", path)
    assert (deleted.status, deleted.body) == (204, b"")
    assert api.get(path).status == 404


def test_a_pair_of_task_and_agent_has_one_state(api: Service) -> None:
    """A second one is a conflict, on creation and on replacement, and changes nothing."""
    first, second = new_state(), new_state()
    assert api.ask("POST", "/states", first).status == 201
    assert api.ask("POST", "/states", first).status == 409
    other = api.ask("POST", "/states", second).json
    clash = api.ask("PUT", f"/states/{other['id']}", first)
    assert clash.status == 409
    assert clash.json["code"] == "conflict"
    assert api.get(f"/states/{other['id']}").json == other


def test_states_are_found_by_task_and_agent(api: Service) -> None:
    """Either or both narrow the list."""
    task = next(_numbers)
    for agent in (1, 2):
        api.ask("POST", "/states", new_state(task_id=task, agent_id=agent))
    agents = [item["agent_id"] for item in api.get(f"/states?task_id={task}").json["items"]]
    assert sorted(agents) == [1, 2]
    found = api.get(f"/states?task_id={task}&agent_id=2").json["items"]
    assert [item["agent_id"] for item in found] == [2]


def test_the_state_of_a_pair_is_read_by_it(api: Service) -> None:
    """With a tag that holds for this state alone; a pair without a state is a 404."""
    task = next(_numbers)
    path = f"/states/by-task/{task}/agent/1"
    missing = api.get(path)
    assert (missing.status, missing.json["code"]) == (404, "not_found")
    made = api.ask("POST", "/states", new_state(task_id=task))
    api.ask("POST", "/states", new_state(task_id=task, agent_id=2))
    read = api.get(path)
    assert (read.status, read.body) == (200, made.body)
    tag = {"If-None-Match": read.headers["ETag"]}
    assert api.get(path, headers=tag).status == 304
    assert api.ask("DELETE", f"/states/{made.json['id']}").status == 204
    assert api.ask("POST", "/states", new_state(task_id=task)).status == 201
    assert api.get(path, headers=tag).status == 200


@pytest.mark.parametrize("pair", ["0/agent/1", "1/agent/x", f"1/agent/{2**63}", "1/agent/"])
def test_a_pair_that_cannot_be_is_a_404(api: Service, pair: str) -> None:
    """As an id is that cannot be."""
    assert api.get(f"/states/by-task/{pair}").status == 404


def test_a_list_has_fifty_states_by_default(api: Service) -> None:
    """The sample has a hundred; limit goes up to that."""
    assert len(api.get("/states").json["items"]) == 50
    assert len(api.get("/states?limit=100").json["items"]) == 100
    assert api.get("/states?limit=101").status == 422


def test_changes_at_once_are_all_made(api: Service) -> None:
    """By several workers: each is made on what the one before it left."""
    path = f"/states/{api.ask('POST', '/states', new_state(data={})).json['id']}"
    patches = [{"data": {f"n{number}": number}} for number in range(12)]
    with ThreadPoolExecutor(len(patches)) as clients:
        answers = list(clients.map(lambda patch: api.ask("PATCH", path, patch), patches))
    assert [answer.status for answer in answers] == [200] * len(patches)
    now = api.get(path).json
    assert now["data"] == {f"n{number}": number for number in range(12)}
    assert now["version"] == 13


def test_a_change_keeps_what_it_does_not_name(api: Service) -> None:
    """Whatever kind of data it was, and becomes."""
    for data in DATA:
        path = f"/states/{api.ask('POST', '/states', new_state(data=data)).json['id']}"
        for more in ({"x": [[1]]}, {"y": 2}, {"x": None}, {"y": None}):
            assert api.ask("PATCH", path, {"data": more}).status == 200
        kept = {name: value for name, value in data.items() if value is not None}
        assert {k: v for k, v in api.get(path).json["data"].items() if v is not None} == kept


DATA = [
    {},
    {"a": None, "b": True, "c": 1, "d": 1.5, "e": "é\u2028\U0001f600", "f": {"g": []}},
    {"matrix": [[1, 2], [3, [4]]]},
    {"dotted.name": 1, "$set": {"x": 1}, "": 2},
    {"nul\0name": "nul\0value"},
    {"large": 2**64, "small": -(2**80), "most": 2**63 - 1},
    {"beyond 32 bits": 2**40, "most": 2**63 - 1},
    {"_id": 5, "data": {"data": 1}, "data_json": "text"},
    {"n": {"n": {"n": {"n": [{"n": [0.1, 1e300]}]}}}},
]


def test_a_pair_of_large_numbers_is_read_as_it_was_written(api: Service) -> None:
    """The driver gives numbers beyond 32 bits a kind of their own."""
    sent = new_state(task_id=2**40 + 7, agent_id=2**62)
    path = f"/states/{api.ask('POST', '/states', sent).json['id']}"
    found = api.get(path).json
    assert (found["task_id"], found["agent_id"]) == (2**40 + 7, 2**62)


@pytest.mark.parametrize(
    "data",
    DATA,
    ids=[
        "empty",
        "plain",
        "nested lists",
        "names",
        "nul",
        "numbers",
        "64 bits",
        "our names",
        "depth",
    ],
)
def test_any_json_object_comes_back_as_it_was(api: Service, data: dict[str, object]) -> None:
    """On creation, on reading, in a list, and when it replaces another kind of data."""
    sent = new_state(data=data)
    created = api.ask("POST", "/states", sent)
    assert created.status == 201, created.body
    path = f"/states/{created.json['id']}"
    assert api.get(path).json["data"] == data
    assert api.get(f"/states?task_id={sent['task_id']}").json["items"][0]["data"] == data
    for other in (*DATA, data):
        assert api.ask("PUT", path, {**sent, "data": other}).status == 200
        assert api.get(path).json["data"] == other


@pytest.mark.parametrize(
    "body",
    [
        {"task_id": 1, "agent_id": 1},
        {"task_id": 0, "agent_id": 1, "data": {}},
        {"task_id": 2**63, "agent_id": 1, "data": {}},
        {"task_id": "1", "agent_id": 1, "data": {}},
        {"task_id": 1, "agent_id": 1, "data": []},
        {"task_id": 1, "agent_id": 1, "data": {}, "id": "x"},
    ],
    ids=["missing", "zero", "large", "text", "array", "unknown"],
)
def test_a_bad_state_is_a_422(api: Service, body: object) -> None:
    """Types are strict, unknown fields refused."""
    assert api.ask("POST", "/states", body).status == 422


def test_data_nested_beyond_reason_is_a_422(api: Service) -> None:
    """A body made to exhaust the stack is refused, not answered with a 500."""
    depth = 100_000
    body = b'{"task_id":1,"agent_id":1,"data":{"a":' + b"[" * depth + b"]" * depth + b"}}"
    answer = api.ask("POST", "/states", body, {"Content-Type": "application/json"})
    assert (answer.status, answer.json["detail"]) == (422, "the body is nested too deeply")


@pytest.mark.parametrize("state_id", ["x", "0" * 24, "z" * 24, "A" * 24, "%00"])
def test_what_is_not_there_is_a_404(api: Service, state_id: str) -> None:
    """Also for what could never be an id."""
    for method in ("GET", "DELETE"):
        assert api.ask(method, f"/states/{state_id}").status == 404
    assert api.ask("PATCH", f"/states/{state_id}", {}).status == 404
    assert api.ask("PUT", f"/states/{state_id}", new_state()).status == 404


def test_a_state_grows_to_the_size_of_a_body(api: Service) -> None:
    """A patch beyond that is a 422 that says which, alone and in a batch; nothing is changed."""
    made = api.ask("POST", "/states", new_state()).json
    path, half = f"/states/{made['id']}", "x" * 600_000
    grown = api.ask("PATCH", path, {"data": {"first": half}})
    assert grown.status == 200
    patch = {"data": {"second": half}}
    many = {"items": [{"id": made["id"], "patch": patch}]}
    answers = [api.ask("PATCH", path, patch), api.ask("PATCH", "/states/batch", many)]
    assert [answer.status for answer in answers] == [422, 422]
    assert [answer.json["errors"][0]["pointer"] for answer in answers] == ["", "/items/0/patch"]
    assert api.get(path).body == grown.body
