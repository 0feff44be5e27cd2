"""Our request object has the values of Flask's, whatever a client sends."""

from io import BytesIO
from typing import Any

import flask
import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException

from greenline.flask import Flask
from greenline.flask.request import MAX_LENGTH, Request

ATTRIBUTES = (
    "method", "scheme", "server", "root_path", "path", "query_string", "remote_addr", "args",
    "cookies", "mimetype", "mimetype_params", "is_json", "content_length", "content_type", "host",
    "url", "full_path", "access_route", "max_content_length", "max_form_memory_size",
    "max_form_parts", "form", "files", "values", "data", "json",
)  # fmt: skip
TEXT = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=12)
PAIRS = st.lists(st.sampled_from([*"ab=&%+;2é \xff", "%41", "%c3%a9"]), max_size=16).map("".join)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "HTTP_HOST": st.sampled_from(["example.com", "example.com:81", "", "a b"]),
        "HTTP_COOKIE": st.text('ab=;" \\,é', max_size=16),
        "CONTENT_TYPE": st.sampled_from(
            ["application/json", "Application/JSON ; charset=utf-8", "application/a+json", "",
             "application/x-www-form-urlencoded", "text/plain; charset", "é; a=b",
             "text/plain; a=" + MAX_LENGTH * "b"]
        ),
        "CONTENT_LENGTH": st.sampled_from(["0", "7", "x", "-1", "99999"]),
        "HTTP_TRANSFER_ENCODING": st.just("chunked"),
        "HTTP_X_FORWARDED_FOR": st.sampled_from(["10.0.0.1, 10.0.0.2", ""]),
        "wsgi.input_terminated": st.just(True),
        "wsgi.url_scheme": st.sampled_from(["http", "https", "wss"]),
        "SCRIPT_NAME": st.sampled_from(["", "/", "/app", "/app//", "/é"]),
        "SERVER_NAME": st.sampled_from(["server", "", "/run/socket"]),
        "SERVER_PORT": st.sampled_from(["80", "", "x", None]),
        "REMOTE_ADDR": st.just("10.0.0.9"),
        "REQUEST_METHOD": st.sampled_from(["GET", "post", "PUT"]),
        "PATH_INFO": TEXT,
        "QUERY_STRING": PAIRS,
    },
)  # fmt: skip
BODIES = st.sampled_from([b"", b"a=1&b=2&a=3", b"a=%32+", b'{"a": [1]}', b"{", b"\xff=\xfe"])
CONFIGS = st.sampled_from([{}, {"MAX_CONTENT_LENGTH": 5, "MAX_FORM_PARTS": 3}])


def read(request: Any, name: str) -> Any:
    """Return an attribute with its type, or its error."""
    try:
        value = getattr(request, name)
    except Exception as error:
        return type(error), str(error)
    return type(value), value


@given(environ=HEADERS, body=BODIES, config=CONFIGS, order=st.permutations(ATTRIBUTES))
def test_all_attributes_are_flasks(
    environ: dict[str, Any], body: bytes, config: dict[str, int], order: list[str]
) -> None:
    """In any order: some of them read the body."""
    seen = []
    for cls in (flask.Request, Request):
        app = flask.Flask("alike")
        app.config.update(config)
        with app.app_context():
            request = cls({**environ, "wsgi.input": BytesIO(body)})
            found = {name: read(request, name) for name in order}
            seen.append((found, request.environ["werkzeug.request"] is request, vars(request)))
    (flasks, populated, state), (ours, ours_populated, our_state) = seen
    assert ours == flasks
    assert ours_populated is populated is True
    assert our_state.keys() == state.keys()


def test_the_limits_of_a_request_are_its_own() -> None:
    """Set for one request, or read without an application, as Flask has it."""
    app = flask.Flask("limits")
    app.config["MAX_CONTENT_LENGTH"] = 9
    for cls in (flask.Request, Request):
        with app.app_context():
            request = cls({})
            assert request.max_content_length == 9
            request.max_content_length = 3
            assert request.max_content_length == 3
        request = cls({"wsgi.input": BytesIO(b"12345"), "CONTENT_LENGTH": "5"})
        assert (request.max_content_length, request.max_form_parts) == (None, 1_000)
        request.max_content_length = 3
        with pytest.raises(HTTPException, match="413"):
            request.get_data()


@pytest.mark.parametrize("cls", [flask.Flask, Flask])
def test_another_storage_class_is_used(cls: type[flask.Flask]) -> None:
    """For arguments and cookies, where the application has set it."""
    app = cls("storage")

    class Ordered(app.request_class):  # type: ignore[misc, name-defined]
        parameter_storage_class = dict_storage_class = MultiDict

    app.request_class = Ordered
    with app.test_request_context("/?b=1&a=2", headers={"Cookie": "a=b"}):
        assert type(flask.request.args) is type(flask.request.cookies) is MultiDict
        assert [*flask.request.args] == ["b", "a"]


def test_what_is_shallow_has_no_body() -> None:
    """As with Flask's, which is not found in the environ either."""
    for cls in (flask.Request, Request):
        request = cls({"wsgi.input": BytesIO(), "wsgi.input_terminated": True}, shallow=True)
        assert "werkzeug.request" not in request.environ
        with pytest.raises(RuntimeError, match="shallow"):
            request.get_data()


def test_parameters_of_a_type_are_no_others() -> None:
    """One request may change what it was given; the next has its own."""
    environ = {"CONTENT_TYPE": "text/plain; a=b"}
    Request(environ).mimetype_params["a"] = "c"
    assert Request(environ).mimetype_params == {"a": "b"}
