"""Which form of a list an Accept header asks for."""

import pytest
from flask import Flask
from werkzeug.exceptions import NotAcceptable

from app.api.accept import prefers_lines
from greenline.flask import Flask as Green

LINES = "application/x-ndjson"


@pytest.fixture(scope="module")
def app() -> Flask:
    return Green(__name__)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/*", False),
        (f"{LINES}, application/json", False),
        (f"{LINES};q=0.5, application/json", False),
        (LINES, True),
        (f"{LINES}; charset=utf-8", True),
        (f"{LINES}, */*", True),
        (f"{LINES}, application/problem+json", True),
        (f"{LINES}, application/json;q=0.5", True),
        (f"{LINES};q=0", False),
    ],
)  # fmt: skip
def test_lines_are_answered_where_they_are_preferred(
    app: Flask, accept: str | None, expected: bool
) -> None:
    """A client that takes both alike, or anything, gets a page."""
    with app.test_request_context(headers={} if accept is None else {"Accept": accept}):
        assert prefers_lines() is expected


def test_lines_need_http_1_1(app: Flask) -> None:
    """Over HTTP/1.0 a list that was cut would look whole."""
    version = {"SERVER_PROTOCOL": "HTTP/1.0"}
    with app.test_request_context(headers={"Accept": LINES}, environ_overrides=version):
        with pytest.raises(NotAcceptable, match=r"needs HTTP/1\.1"):
            prefers_lines()
    with app.test_request_context(headers={"Accept": "*/*"}, environ_overrides=version):
        assert prefers_lines() is False
