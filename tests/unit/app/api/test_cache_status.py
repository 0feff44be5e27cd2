"""app.api.cache_status: the header, by where the answer comes from."""

import os

import pytest

from app.api import cache_status
from greenline.flask import Flask


@pytest.mark.parametrize(
    ("method", "where", "expected"),
    [
        ("GET", "hit", "hit"),
        ("GET", "stale", "hit"),
        ("GET", "miss", "fwd=miss"),
        ("GET", "collapsed", "fwd=miss; collapsed"),
        ("HEAD", None, "fwd=bypass"),
        ("POST", None, "fwd=method"),
    ],
)
def test_the_header_says_it(method: str, where: str | None, expected: str) -> None:
    headers: list[tuple[str, str]] = []
    with Flask(__name__).test_request_context(method=method) as context:
        if where is not None:
            cache_status.note(where)
        cache_status.add(context.request.environ, headers)
    assert headers == [("Cache-Status", f"greenline-{os.getpid()}; {expected}")]
