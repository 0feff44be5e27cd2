"""greenline.flask.conditional: each response becomes what Werkzeug makes of it."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from werkzeug.wrappers import Request, Response

from greenline.flask import conditional

NOW = 1_700_000_000
DATE, LATER = "Tue, 14 Nov 2023 22:13:20 GMT", "Wed, 15 Nov 2023 22:13:20 GMT"
TAGS = ['"a"', 'W/"a"', '"b"', "a", "", '"a,b"', '"a" ', "*", '"a', f'"{"a" * 120}"']
HEADERS = [
    *(("ETag", tag) for tag in TAGS),
    ("etag", '"a"'), ("Date", DATE), ("date", LATER), ("Last-Modified", DATE),
    ("Content-Length", "1"), ("Content-Type", "text/plain"),
]  # fmt: skip
ASKED = st.fixed_dictionaries(
    {"REQUEST_METHOD": st.sampled_from(["GET", "HEAD", "POST"])},
    optional={
        "HTTP_IF_NONE_MATCH": st.lists(st.sampled_from(TAGS), max_size=3).map(", ".join),
        "HTTP_IF_MATCH": st.sampled_from(TAGS),
        "HTTP_IF_MODIFIED_SINCE": st.sampled_from([DATE, LATER, "never"]),
        "HTTP_RANGE": st.just("bytes=0-0"),
    },
)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of both."""
    monkeypatch.setattr(conditional, "time", lambda: NOW)
    monkeypatch.setattr("werkzeug.wrappers.response.http_date", lambda: DATE)


def made(make: Any, environ: dict[str, Any], headers: Any, kind: Any, **more: Any) -> Any:
    """Return all that a server sees of a response, or the error."""
    response = Response(b"x" if kind else [b"x", b"y"])
    response.headers.extend(headers)
    given_ = Request(environ) if kind == "request" else environ
    try:
        assert make(response, given_, **more) is response
    except Exception as error:
        return type(error), str(error)
    return response.status, response.status_code, response.headers.to_wsgi_list()


@example({"REQUEST_METHOD": "GET", "HTTP_IF_MODIFIED_SINCE": LATER}, [("Last-Modified", DATE)], "x")
@given(ASKED, st.lists(st.sampled_from(HEADERS), max_size=4), st.sampled_from(["request", "x", ""]))
def test_it_does_what_werkzeug_does(
    environ: dict[str, Any], headers: list[tuple[str, str]], kind: str
) -> None:
    """Whatever is sent, and whatever the response has."""
    for more in ({}, {"accept_ranges": True, "complete_length": 1}):
        mine = made(conditional.make_conditional, environ.copy(), headers, kind, **more)
        assert mine == made(conditional.by_werkzeug, environ.copy(), headers, kind, **more)


def test_views_have_it() -> None:
    """Without a change of theirs."""
    assert Response.make_conditional is conditional.make_conditional
