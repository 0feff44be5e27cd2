"""greenline.flask.routing: URLs are built as by Flask."""

from collections.abc import Callable
from typing import Any

import flask
import pytest
from werkzeug.routing import Rule

import greenline.flask

RULES: dict[str, dict[str, Any]] = {
    "/": {},
    "/a b/<int:id>": {},
    "/of/<name>/<path:rest>/": {},
    "/pages/": {"defaults": {"page": 1}},
    "/pages/<int:page>/": {},
}
VALUES: list[dict[str, Any]] = [
    {},
    {"id": 7},
    {"id": 7, "q": ["a", "b&"]},
    {"name": "a/b", "rest": "c/d e"},
    {"page": 1},
    {"page": 2, "q": None},
]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the rules that are compiled from now on, each once a function."""
    original: Callable[..., Any] = Rule._compile_builder
    rules: list[str] = []

    def compile_builder(rule: Rule, append_unknown: bool = True) -> Any:
        rules.append(rule.rule)
        return original(rule, append_unknown)

    monkeypatch.setattr(Rule, "_compile_builder", compile_builder)
    return rules


def index(**_: Any) -> str:
    """Serve each of the rules."""
    return ""


def application(kind: type[flask.Flask]) -> flask.Flask:
    """Return an application that has the rules, each with an endpoint of its own but for pages."""
    app = kind("app")
    for rule, more in RULES.items():
        endpoint = "pages" if "page" in rule else rule
        app.add_url_rule(rule, endpoint, index, **more)
    return app


def urls(app: flask.Flask) -> list[str]:
    """Return what is built from each of the values for each endpoint, twice."""
    built = []
    with app.test_request_context():
        for endpoint in app.view_functions:
            for values in VALUES * 2:
                try:
                    built.append(flask.url_for(endpoint, **values))
                except Exception as error:
                    built.append(str(error))
    return built


def test_urls_are_those_of_flask() -> None:
    """With defaults, values to quote, unknown values, and too few."""
    assert urls(application(greenline.flask.Flask)) == urls(application(flask.Flask))


def test_a_rule_is_compiled_when_a_url_is_built(compiled: list[str]) -> None:
    """Not when it is added, and once."""
    app = application(greenline.flask.Flask)
    assert compiled == []
    with app.test_request_context():
        first = [flask.url_for("/a b/<int:id>", id=7) for _ in range(3)]
    assert first == ["/a%20b/7"] * 3
    assert compiled == ["/a b/<int:id>"]
