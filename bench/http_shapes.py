"""The requests of ``bench.http``, and the plain WSGI applications beside them."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bench.peers.http_application import VERSION

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
STOCK = "gevent-flask"  # gunicorn's own gevent worker
BOOK = {
    "title": "The collected letters",
    "authors": ["Ada Lovelace", "Charles Babbage"],
    "pages": 412,
    "publisher": {"name": "A press", "city": "London"},
}


@dataclass(frozen=True)
class Shape:
    """
    One kind of request.

    :param status: the status of a right answer, int. Default 200.
    :param has_same_body: whether all servers answer it with the same JSON, bool. Default True.
    :param left_out: servers that cannot answer it. Default none.
    """

    name: str
    path: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    status: int = 200
    has_same_body: bool = True
    left_out: Collection[str] = ()


SMALL = Shape("small-json", "/")
STREAM = Shape("stream", "/stream")
SHAPES = (
    SMALL,
    Shape("path-query-header", "/items/17?name=ada", headers={"X-Request-Id": "r-17"}),
    Shape("post-json", "/echo", "POST", {"Content-Type": JSON}, json.dumps(BOOK)),
    Shape(
        "post-form",
        "/form",
        "POST",
        {"Content-Type": FORM, "Cookie": "theme=dark; session=eyJ1c2VyIjoxN30"},
        "name=Ada+Lovelace&city=London",
    ),
    Shape("large-json", "/books"),
    STREAM,
    Shape("new-connection", "/", headers={"Connection": "close"}),
    # Where greenlets share a thread asgiref refuses to run a second coroutine beside the first.
    Shape("async-view", "/async", left_out=[STOCK]),
    # Each framework has a page of its own.
    Shape("not-found", "/missing", status=404, has_same_body=False),
    Shape(
        "not-modified",
        "/conditional",
        headers={"If-None-Match": f'"{VERSION}"'},
        status=304,
        has_same_body=False,
    ),
)
# The target of each plain application, and its request.
PLAIN = {
    "bench.peers.http_django:app": Shape("django-json", "/"),
    # It prints the environ.
    "wsgiref.simple_server:demo_app": Shape("wsgiref-demo", "/", has_same_body=False),
}
