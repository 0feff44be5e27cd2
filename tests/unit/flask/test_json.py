"""The JSON of our provider is Flask's, but for the two differences that it names."""

import json
import re
from typing import Any

import flask
import pytest
from flask.json.provider import DefaultJSONProvider
from hypothesis import given
from hypothesis import strategies as st

from greenline.flask import Flask

EXPONENT = re.compile(rb"\d[eE][-+]?\d")

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    scalars | st.dates() | st.uuids() | st.decimals() | st.datetimes(timezones=st.none()),
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner),
        st.dictionaries(st.text() | st.integers(), inner),
    ),
    max_leaves=8,
)

ours, stock = Flask("ours"), flask.Flask("stock")
stock.json = DefaultJSONProvider(stock)


def written(app: flask.Flask, value: Any) -> bytes | type[Exception]:
    """Return the body of a JSON response, or the kind of error."""
    try:
        return app.json.response(value).get_data()  # type: ignore[attr-defined, no-any-return]
    except Exception as error:
        return type(error)


def read(app: flask.Flask, text: str | bytes) -> Any:
    """Return what a JSON text holds, or the kind of error."""
    try:
        return repr(app.json.loads(text))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("ensure_ascii", [True, False], ids=["ascii", "utf-8"])
@pytest.mark.parametrize("sort_keys", [True, False], ids=["sorted", "unsorted"])
@given(value=values)
def test_what_is_written_is_what_flask_writes(
    value: Any, ensure_ascii: bool, sort_keys: bool
) -> None:
    """The same bytes, or the same number in other digits where it has an exponent."""
    for app in (ours, stock):
        app.json.ensure_ascii, app.json.sort_keys = ensure_ascii, sort_keys  # type: ignore[attr-defined]
    expected, got = written(stock, value), written(ours, value)
    if got != expected:
        assert isinstance(expected, bytes)
        assert EXPONENT.search(expected)
        assert isinstance(got, bytes)
        assert repr(json.loads(got)) == repr(json.loads(expected))


@given(text=st.one_of(st.text(), st.binary(), values.map(lambda v: json.dumps(v, default=str))))
def test_what_is_read_is_what_flask_reads(text: str | bytes) -> None:
    """The same value, or the same error in the same words."""
    assert read(ours, text) == read(stock, text)


@pytest.mark.parametrize(
    "text", ["NaN", "[1e999]", '"\\ud800"', "9" * 400, '{"a":1,"a":2}', "\ufeff1", "[1,]", b"\xff1"]
)
def test_odd_texts_are_read_as_flask_reads_them(text: str | bytes) -> None:
    """What msgspec reads in another way, or refuses, is Flask's to read."""
    assert read(ours, text) == read(stock, text)


@pytest.mark.parametrize(
    ("value", "body"),
    [(b"x", b'"eA=="\n'), ({"s": {1}}, b'{"s":[1]}\n'), (1e16, b"1e16\n")],
    ids=["bytes", "set", "exponent"],
)
def test_the_differences_are_those_in_the_docstring(value: Any, body: bytes) -> None:
    """Bytes and sets are written, and an exponent has no plus: Flask differs in these alone."""
    assert written(ours, value) == body
    assert written(stock, value) != body


def test_nothing_that_is_no_plain_value_is_written_by_msgspec() -> None:
    """A class that msgspec knows and json does not is as unknown as in Flask."""

    class Known(dict[str, Any]):
        def items(self) -> Any:
            return [("from", "items")]

    assert written(ours, {"a": Known(b=1)}) == b'{"a":{"from":"items"}}\n'
