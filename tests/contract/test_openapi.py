"""The OpenAPI document tells all that is served, and what is answered is what it tells."""

import itertools
import re
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import Any

import jsonschema_rs
import pytest
from flask import Flask
from msgspec import Struct
from openapi_spec_validator import OpenAPIV31SpecValidator

from app.api import openapi
from app.api.operations import Operation, Scope
from app.api.schemas import Schemas, parameters
from app.factory import create_app
from config import load
from tests.helpers.support import Answer, Databases, Service, service, wait_until

# The pages for people.
NOT_DOCUMENTED = {"docs.index", "docs.page", "docs.file"}
# Methods that Flask answers for each path by itself.
OF_EACH = {"HEAD", "OPTIONS"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def app(databases: Databases) -> Iterator[Flask]:
    """The application with all that can be switched on; nothing is connected."""
    more = {"AUTH": "on", "GREENLINE_DIAGNOSTICS": "1", "OPS_TOKEN": "sesame"}
    made = create_app(load({**databases.environ, **more}))
    yield made
    made.extensions["greenline"].close()


@pytest.fixture(scope="module")
def document(app: Flask) -> dict[str, Any]:
    """The document of that application."""
    answer = app.test_client().get("/openapi.json")
    assert answer.status_code == 200
    described: dict[str, Any] = answer.get_json()
    return described


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_the_document_is_a_good_one(document: dict[str, Any]) -> None:
    """By the specification's own schemas, and every reference leads somewhere."""
    errors = list(OpenAPIV31SpecValidator(document).iter_errors())
    assert errors == []


def test_every_route_is_in_the_document_and_nothing_else_is(
    app: Flask, document: dict[str, Any]
) -> None:
    """But for the pages for people."""
    served = {
        (method, re.sub("<.*?>", "{}", rule.rule))
        for rule in app.url_map.iter_rules()
        if rule.endpoint not in NOT_DOCUMENTED
        for method in (rule.methods or set()) - OF_EACH
    }
    described = [(method, re.sub("{.*?}", "{}", path)) for method, path in operations(document)]
    assert len(described) == len(set(described))
    assert set(described) == served


def test_every_operation_has_an_id_of_its_own_and_says_what_it_does(
    document: dict[str, Any],
) -> None:
    """Clients are generated from both."""
    described = list(operations(document).values())
    ids = [operation["operationId"] for operation in described]
    assert len(ids) == len(set(ids))
    assert all(operation["summary"] for operation in described)


def test_a_text_of_a_form_has_an_example_of_it(document: dict[str, Any]) -> None:
    """What a page makes of a pattern is noise, or is even refused."""
    for name, component in document["components"]["schemas"].items():
        for field, schema in component.get("properties", {}).items():
            assert "pattern" not in schema or "examples" in schema, (name, field)
            for example in schema.get("examples", ()):
                root = {"components": document["components"], **schema}
                assert jsonschema_rs.is_valid(root, example), (name, field)


class Owner(Struct):
    """Somebody."""

    name: str
    age: int = 0


class CarInput(Struct):
    """A thing with another in it."""

    owner: Owner
    others: list[Owner] = []
    former: Owner | None = None
    colour: str | None = None
    names: dict[str, str] = {}


def test_a_patch_needs_no_field_and_null_stands_for_a_default() -> None:
    """Objects are patched, arrays are replaced."""
    schemas = Schemas()
    assert schemas.patch_of(CarInput) == {"$ref": "#/components/schemas/CarPatch"}
    car = schemas.components["CarPatch"]
    assert "required" not in car
    root = {**car, "components": {"schemas": schemas.components}}
    good: list[Any] = [
        {},
        {"owner": {"age": 3}},
        {"owner": {"age": None}},
        {"former": None, "colour": None, "others": None},
        {"former": {"name": "x"}},
        {"names": {"en": None}},
    ]
    bad: list[Any] = [
        {"owner": None},
        {"owner": {"name": None}},
        {"others": [{"age": 3}]},
        {"colour": 3},
        {"wheels": 4},
        {"names": {"en": 3}},
    ]
    validator = jsonschema_rs.validator_for(root)
    assert [validator.is_valid(one) for one in good + bad] == [True] * 6 + [False] * 6


class Search(Struct):
    """A query string."""

    limit: int
    colour: str | None = None


def test_a_parameter_is_never_null() -> None:
    """One that is not there stands for that."""
    assert parameters(Search) == [
        {"name": "limit", "in": "query", "required": True, "schema": {"type": "integer"}},
        {"name": "colour", "in": "query", "required": False, "schema": {"type": "string"}},
    ]


def test_two_types_of_one_name_are_refused() -> None:
    """One of them would be described by the other."""
    schemas = Schemas()
    schemas.of(Owner)
    other = type("Owner", (Struct,), {"__annotations__": {"id": int}})
    with pytest.raises(ValueError, match="two types are called Owner"):
        schemas.of(other)


def test_an_operation_without_anything_has_nothing_that_can_go_wrong() -> None:
    """No status is described that cannot come."""
    bare = Operation("x", "GET", "/x", "x", "x", {HTTPStatus.NO_CONTENT: None})
    described = openapi.document([bare])["paths"]["/x"]["get"]
    assert set(described["responses"]) == {"204"}


def test_what_an_open_service_does_not_ask_for_is_not_in_its_document() -> None:
    """A page would have a button to log in, and a client would look for a key."""
    answers = {HTTPStatus.NO_CONTENT: None}
    operation = Operation("x", "GET", "/x", "x", "x", answers, Scope.WRITE)
    guarded = openapi.document([operation])
    described = guarded["paths"]["/x"]["get"]
    assert described["security"] == [{"key": ["write"]}]
    assert {"401", "403"} < set(described["responses"])
    assert set(guarded["components"]["securitySchemes"]) == {"key"}
    is_open = openapi.document([operation], is_open=True)
    assert "security" not in is_open["paths"]["/x"]["get"]
    assert not {"401", "403"} & set(is_open["paths"]["/x"]["get"]["responses"])
    assert is_open["components"]["securitySchemes"] == {}


@pytest.fixture(scope="module")
def live(databases: Databases) -> Iterator[Service]:
    """The service with all that can be switched on."""
    more = {"GREENLINE_DIAGNOSTICS": "1", "OPS_TOKEN": "sesame"}
    with service({**databases.environ, **more}) as running:
        yield running


class Asker:
    """Asks the service, and compares its response with the description."""

    def __init__(self, live: Service) -> None:
        self._live = live
        self._document = live.get("/openapi.json").json
        self.seen: set[str] = set()

    def ask(
        self, method: str, path: str, body: Any = None, form: str | None = None, **headers: str
    ) -> Answer:
        """*form* is the path as the document has it, where it has variables."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self._live.ask(method, path, body, named)
        plain = path.partition("?")[0]
        operation = operations(self._document)[method, form or plain]
        self.seen.add(operation["operationId"])
        described = self._resolved(operation["responses"][str(answer.status)])
        kind = answer.headers.get("Content-Type")
        content = described.get("content", {})
        assert (kind in content) if content else (kind is None)
        for name, header in described.get("headers", {}).items():
            assert name in answer.headers or not self._resolved(header).get("required")
        if kind is not None:
            schema = described["content"][kind]["schema"]
            root = {"components": self._document["components"], **schema}
            jsonschema_rs.validator_for(root).validate(answer.json)
        return answer

    def _resolved(self, described: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in described:
            return described
        _, kind, name = described["$ref"].rsplit("/", 2)
        found: dict[str, Any] = self._document["components"][kind][name]
        return found


def test_only_what_writes_may_end_unknown(document: dict[str, Any]) -> None:
    """Operations that write describe a 500, and a 409 may have Retry-After."""
    found = operations(document)
    for method, path in (("POST", "/agents"), ("PATCH", "/states/batch"), ("DELETE", "/keys/{id}")):
        assert "500" in found[method, path]["responses"]
    for method, path in (("GET", "/agents"), ("POST", "/agents/batch-get"), ("GET", "/healthz")):
        assert "500" not in found[method, path]["responses"]
    assert "Retry-After" in document["components"]["responses"]["Conflict"]["headers"]


def test_what_is_answered_is_what_the_document_tells(live: Service) -> None:
    """Status, headers and body of a life of agents, and of its faults."""
    asker = Asker(live)
    ask, one = asker.ask, "/agents/{id}"
    named = "/agents/by-name/{name}"
    names = [f"described {next(_numbers)}" for _ in range(4)]
    first = ask("POST", "/agents", {"name": names[0]}, Idempotency_Key="described").json
    path = f"/agents/{first['id']}"
    assert ask("POST", "/agents", {"name": names[0]}).status == 409
    assert ask("POST", "/agents", {"name": names[1]}, Idempotency_Key="described").status == 422
    assert ask("POST", "/agents", b"{").status == 415
    assert ask("POST", "/agents", b"{", Content_Type="application/json").status == 400
    large = b'"%b"' % (b"x" * 1_100_000)
    assert ask("POST", "/agents", large, Content_Type="application/json").status == 413
    assert ask("GET", "/agents?limit=1&total=true").json["total"] > 1
    assert ask("GET", "/agents?limit=0").status == 422
    assert ask("GET", "/agents", Accept="image/png").status == 406
    assert ask("GET", path, form=one).status == 200
    assert ask("GET", path, form=one, If_None_Match='"1"').status == 304
    assert ask("GET", "/agents/0", form=one).status == 404
    assert ask("PUT", path, {"name": names[0]}, form=one).status == 200
    assert ask("PUT", path, {"name": names[0]}, form=one, If_Match='"1"').status == 412
    assert ask("PATCH", path, {"name": names[1]}, form=one).status == 200
    by_name = f"/agents/by-name/{names[1]}".replace(" ", "%20")
    assert ask("GET", by_name, form=named).status == 200
    assert ask("PUT", by_name, {"name": names[1]}, form=named).status == 200
    assert ask("PATCH", by_name, {}, form=named).status == 200
    assert ask("DELETE", by_name, form=named).status == 204
    made = ask("POST", "/agents/batch", {"items": [{"name": name} for name in names]}).json
    ids = [item["id"] for item in made["items"]]
    found = ask("POST", "/agents/batch-get", {"ids": [*ids, first["id"]]}).json
    assert found["missing"] == [first["id"]]
    by_names = {"names": [*names, "missing"]}
    found = ask("POST", "/agents/batch-get/by-name", by_names).json
    assert [item["id"] for item in found["items"]] == ids
    assert found["missing"] == ["missing"]
    gone = ask("DELETE", "/agents/batch/by-name", by_names)
    assert (gone.status, gone.json["missing"]) == (404, ["missing"])
    changes = [{"id": item_id, "patch": {}, "version": 1} for item_id in ids]
    assert ask("PATCH", "/agents/batch", {"items": changes}).status == 200
    assert ask("PATCH", "/agents/batch", {"items": changes}).status == 412
    gone = ask("DELETE", "/agents/batch", {"ids": [*ids, first["id"]]})
    assert (gone.status, gone.json["missing"]) == (404, [first["id"]])
    assert ask("DELETE", f"/agents/{ids[0]}", form=one).status == 204
    assert ask("DELETE", f"/agents?name={names[1]}".replace(" ", "%20")).json == {"deleted": 1}
    assert ask("DELETE", "/agents/batch", {"ids": ids[2:3]}).json == {"deleted": 1}
    named = {"names": names[3:]}
    assert ask("DELETE", "/agents/batch/by-name", named).json == {"deleted": 1}
    described = operations(live.get("/openapi.json").json).values()
    assert asker.seen == {one["operationId"] for one in described if one["tags"] == ["agents"]}


def test_what_operators_ask_is_answered_as_the_document_tells(live: Service) -> None:
    """Health, the budget with and without the token, and a query that sleeps."""
    ask = Asker(live).ask

    def is_ready(path: str) -> bool:
        return ask("GET", path).status == 200

    for path in ("/healthz", "/openapi.json"):
        assert ask("GET", path).status == 200
    # Each worker warms up by itself: the second one may not be ready when the first one is.
    for path in ("/readyz", "/healthcheck"):
        wait_until(partial(is_ready, path), path)
    assert ask("GET", "/ops/budget").status == 401
    assert ask("GET", "/ops/budget", Authorization="Bearer sesame").status == 200
    assert ask("GET", "/diagnostics/sleep?seconds=0").status == 200
    assert ask("GET", "/diagnostics/sleep?seconds=-1").status == 422


def test_a_client_that_has_the_document_gets_304(live: Service) -> None:
    """A page that asks again gets it once."""
    first = live.get("/openapi.json")
    again = live.get("/openapi.json", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
