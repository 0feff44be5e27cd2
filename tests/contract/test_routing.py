"""Our URL map finds what Werkzeug's own finds, whatever the rules."""

import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as some
from werkzeug.routing import Map as WerkzeugMap
from werkzeug.routing import Rule

from greenline.flask.routing import Map
from tests.helpers.support import IS_LONG

M = TypeVar("M", bound=WerkzeugMap)

FIXED = ["a", "7"]
VARIABLE = [
    "<int:n>", "<n>", "<float:n>", "<uuid:n>", "<path:n>", "<any(a, b):n>", "_<int:n>", "<int:n>_",
    "<string(length=1):n>",
]  # fmt: skip
PATH = ["", "a", "7", "7", "07", "b", "_7", "7_", "1.5", str(uuid.UUID(int=7)), "é"]
METHODS = ["GET", "POST", "HEAD"]

fixed = some.lists(some.sampled_from(FIXED), max_size=1)
parts = some.one_of(
    fixed.map(lambda before: [*before, "a"]),
    some.tuples(fixed, some.sampled_from(VARIABLE)).map(
        lambda definitions: [*definitions[0], definitions[1]]
    ),
    some.tuples(some.sampled_from(VARIABLE), some.sampled_from(FIXED)).map(list),
)
rules = some.lists(
    some.tuples(
        parts,
        some.booleans(),  # ends in a slash
        some.sampled_from([["GET"], ["GET"], ["POST"]]),
        some.sampled_from([{}, {}, {}, {"strict_slashes": False}, {"defaults": {"m": 1}},
                           {"defaults": {"n": 7}}, {"build_only": True}, {"alias": True},
                           {"websocket": True}, {"subdomain": "api"}, {"redirect_to": "books"}]),
        some.sampled_from(["one", "other"]),
    ),
    max_size=6,
)  # fmt: skip
paths = some.lists(some.sampled_from(PATH), min_size=1, max_size=3)


def made(cls: type[M], definitions: list[Any], default_subdomain: str) -> M:
    """Return a map of *cls* with the rules of *definitions*, each with its own endpoint."""
    return cls(
        [
            Rule(
                f"/{'/'.join(rule)}{'/' if slash else ''}",
                methods=methods,
                endpoint=endpoint,
                **more,
            )
            for rule, slash, methods, more, endpoint in definitions
        ],
        default_subdomain=default_subdomain,
    )


def one(path: str, endpoint: str = "one", **more: Any) -> Any:
    """Return a rule as the strategy draws them."""
    return path.rstrip("/").split("/"), path.endswith("/"), ["GET"], more, endpoint


@settings(max_examples=1_000 if IS_LONG else 250)
@given(definitions=rules, path=paths, method=some.sampled_from(METHODS),
       default_subdomain=some.sampled_from(["", "api"]))  # fmt: skip
@example(definitions=[one("a/"), one("<n>")], path=["a"], method="GET", default_subdomain="")
@example(definitions=[one("_<n>")], path=["_b"], method="GET", default_subdomain="")
@example(
    definitions=[one("<n>"), one("<n>", endpoint="other")],
    path=["b"],
    method="GET",
    default_subdomain="",
)
@example(definitions=[one("<n>", websocket=True)], path=["b"], method="GET", default_subdomain="")
@example(definitions=[one("<n>", subdomain="api")], path=["b"], method="GET", default_subdomain="")
@example(
    definitions=[one("a", defaults={"n": 7}), one("<int:n>")],
    path=["7"],
    method="GET",
    default_subdomain="",
)
@example(definitions=[one("<n>", redirect_to="a")], path=["b"], method="GET", default_subdomain="")
@example(definitions=[one("<int:n>"), one("<n>")], path=["7"], method="GET", default_subdomain="")
def test_our_map_finds_what_werkzeugs_finds(
    definitions: list[Any], path: list[str], method: str, default_subdomain: str
) -> None:
    """The same rule and the same arguments, or the same error; None leaves it to Werkzeug."""
    try:
        mine = made(Map, definitions, default_subdomain)
        its = made(WerkzeugMap, definitions, default_subdomain)
    except ValueError:  # a default that its converter refuses
        reject()
    text = f"/{'/'.join(path)}"
    adapter = its.bind("localhost", subdomain=default_subdomain)
    ours = outcome(lambda: mine.find(method, text.encode().decode("latin1")))
    assert ours in (None, outcome(lambda: adapter.match(text, method, return_rule=True)))


def outcome(find: Callable[[], Any]) -> Any:
    """Return what was found, or which error there was (Werkzeug has some for an odd alias)."""
    try:
        found = find()
    except Exception as error:
        return type(error)
    if found is None:
        return None
    rule, arguments = found
    return str(rule), rule.endpoint, rule.methods, dict(arguments)


@pytest.mark.parametrize(
    ("rule", "path"),
    [("/books/<int:n>", "/books/7"), ("/<name>", "/é"), ("/a/b/<uuid:u>", f"/a/b/{uuid.uuid4()}")],
    ids=["integer", "text", "uuid"],
)
def test_a_path_that_ends_in_its_only_variable_needs_no_search(rule: str, path: str) -> None:
    """What is known beforehand answers: Werkzeug's matcher is not asked."""
    mine = Map([Rule(rule, endpoint="one", methods=["GET"])])
    found = mine.find("GET", path.encode().decode("latin1"))
    mine._adapter = mine.bind("localhost")
    mine._adapter.match = None  # type: ignore[assignment, method-assign]
    assert mine.find("GET", path.encode().decode("latin1")) == found
    assert mine.why_matched("GET", next(mine.iter_rules())) == ""


@pytest.mark.parametrize(
    ("rules", "path", "reason"),
    [
        ([Rule("/a/<path:p>", endpoint="one")], "/a/b", "not one whole part"),
        ([Rule("/_<n>", endpoint="one")], "/_a", "not one whole part"),
        ([Rule("/<n>/a", endpoint="one")], "/b/a", "not the last part"),
        ([Rule("/<n>/<int:m>", endpoint="one")], "/b/1", "not the last part"),
        ([Rule("/<n>", endpoint="one"), Rule("/<int:n>", endpoint="two")], "/a", "of another kind"),
        ([Rule("/<n>", endpoint="one"), Rule("/<n>", endpoint="two")], None, "the rule of one is"),
        ([Rule("/<n>", endpoint="one", redirect_to="a")], "/b", "it redirects"),
        ([Rule("/a", endpoint="one", redirect_to="b")], "/a", "Werkzeug answers its own path"),
        ([Rule("/a", endpoint="one", build_only=True)], None, "for building URLs only"),
        ([Rule("/<n>", endpoint="one", subdomain="api")], None, "its subdomain is 'api'"),
        (
            [Rule("/a", endpoint="one", defaults={"n": 7}), Rule("/<int:n>", endpoint="one")],
            "/1",
            "another rule of its endpoint has defaults",
        ),
        (
            [Rule("/a", endpoint="one"), Rule("/b", endpoint="two", redirect_to=lambda _: "")],
            None,
            "the redirect_to of /b is a function",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_why_a_rule_is_in_no_table(rules: list[Rule], path: str | None, reason: str) -> None:
    """The last rule has that reason; for its path Werkzeug's matcher is asked."""
    for rule in rules:
        rule.methods = {"GET"}
    mine = Map(rules)
    asked: list[str] = []
    assert reason in mine.why_matched("GET", rules[-1])
    if path is not None:
        assert mine._adapter is not None
        match = mine._adapter.match
        mine._adapter.match = lambda path, *_, **__: asked.append(path) or match(path, "GET")  # type: ignore[assignment, func-returns-value, method-assign]
        mine.find("GET", path)
        assert asked == [path]
