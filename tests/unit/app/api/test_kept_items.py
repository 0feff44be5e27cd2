"""app.api.kept_items: what is answered before Flask, and that Flask would answer the same."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flask
import pytest
from werkzeug.test import create_environ

from app import factory
from app.errors import NotFound
from app.factory import create_app
from app.store import tokens
from app.store.books import Books
from app.store.keys import Grant, Keys
from app.store.ports import Stored
from config import load
from greenline.cache import cache
from greenline.flask import Flask
from greenline.postgres import OpenPostgres

READS, WRITES, STRANGER = (tokens.make().text for _ in range(3))
GRANTS = {READS: Grant(1, frozenset(["read"])), WRITES: Grant(2, frozenset(["write"]))}
# With a condition the item is looked up by the view.
BY_FLASK = {"If-None-Match": '"0"'}


def get(_: Any, item_id: int) -> Stored:
    """Read the only book."""
    if item_id != 1:
        raise NotFound
    return Stored(1, 4, b'{"id":1}')


@dataclass
class Shop:
    """The service without servers, and how many requests Flask was asked."""

    app: Flask
    environ: dict[str, Any] = field(default_factory=dict)
    asked: int = 0

    def ask(
        self, path: str, token: str, method: str = "GET", **headers: str
    ) -> tuple[str, Mapping[str, str], bytes]:
        sent = {"X-Request-Id": "a-test", "Authorization": f"Bearer {token}", **headers}
        self.environ = create_environ(path, method=method, headers=sent)
        started: list[Any] = []
        body = self.app.wsgi_app(self.environ, lambda *head: started.extend(head))
        status, found = started[:2]
        return status, dict(found), b"".join(body)


@contextmanager
def service(**more: str) -> Iterator[Shop]:
    settings = {
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "MONGODB_URI": "off",
        "GREENLINE_CACHE_BYTES": "1000000",
        "WEB_CONCURRENCY": "1",
        **more,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Books, "get", get)
        patch.setattr(Keys, "find", lambda _, token: GRANTS.get(token))
        patch.setattr(OpenPostgres, "feed", lambda _: None)  # what is kept gets no older
        made = Shop(create_app(load(settings)))

        def count(_: Any, **__: Any) -> None:
            made.asked += 1

        try:
            with flask.request_started.connected_to(count, made.app):
                yield made
        finally:
            made.app.extensions["greenline"].close()


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with service() as made:
        yield made


def test_a_kept_item_is_answered_before_flask() -> None:
    with service() as shop:
        status, headers, _ = shop.ask("/books/1", READS)
        assert headers["Cache-Status"].endswith("; fwd=miss")
        for _ in range(3):
            found = shop.ask("/books/1", READS)
            assert found[0] == status == "200 OK"
            assert found[1]["Cache-Status"].endswith("; hit")
        assert shop.asked == 1
        assert shop.environ["greenline.route"] == "/books/<id:item_id>"


@pytest.mark.parametrize("token", [READS, WRITES, STRANGER, "no token"])
@pytest.mark.parametrize(
    "path",
    [
        "/books/1", "/books/1?x=1", "/books/01", "/books/1/", "/books/2", "/books/x", "/books/",
        "/books/1%20", "/books/page%20%7B%7D", f"/books/{'1' * 2_000}", "/book/1", "//books/1",
    ],
)  # fmt: skip
def test_flask_would_answer_the_same(shop: Shop, path: str, token: str) -> None:
    shop.ask("/books/1", READS)  # it is kept from now on
    for method in ("GET", "HEAD", "OPTIONS"):
        for accept in (None, "*/*", "application/json;q=0.5", "text/html", ""):
            headers = {} if accept is None else {"Accept": accept}
            found = shop.ask(path, token, method, **headers)
            route = shop.environ.get("greenline.route")
            asked = shop.asked
            assert found == shop.ask(path, token, method, **headers, **BY_FLASK)
            assert (route, asked + 1) == (shop.environ.get("greenline.route"), shop.asked)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Connection": "Upgrade", "Upgrade": "websocket"}, "405 METHOD NOT ALLOWED"),
        ({"Connection": "Upgrade", "Upgrade": "h2c"}, "200 OK"),
        ({"Host": f"{'a' * 70}.example"}, "400 BAD REQUEST"),
        ({"Host": f"{'a' * 70}.example:80"}, "400 BAD REQUEST"),
        ({"Host": f"{'a' * 70}.example:x"}, "200 OK"),
        ({"Host": "a..example"}, "400 BAD REQUEST"),
        ({"Host": "a b"}, "200 OK"),
        ({"Host": ""}, "200 OK"),
        ({"Host": "[::1]:80"}, "200 OK"),
        ({"Host": "b.example"}, "200 OK"),
    ],
    ids=str,
)
def test_flask_would_answer_the_same_headers(
    shop: Shop, headers: Mapping[str, str], status: str
) -> None:
    """Also where it refuses the request although its path and key are right."""
    shop.ask("/books/1", READS)
    found = shop.ask("/books/1", READS, **headers)
    assert found[0] == status
    assert found == shop.ask("/books/1", READS, **headers, **BY_FLASK)


def test_where_requests_are_counted_flask_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A request beyond the limit is refused, also for an item that is kept."""
    # The service's own file has the requests of a test run a moment ago.
    monkeypatch.setattr(factory, "counts_path", lambda _: tmp_path / "counts")
    with service(RATE_LIMIT="3/minute") as shop:
        found = [shop.ask("/books/1", READS)[0] for _ in range(5)]
        assert found == ["200 OK"] * 3 + ["429 TOO MANY REQUESTS"] * 2


@pytest.mark.parametrize(
    ("path", "token", "hits"),
    [
        ("/books/1", READS, {"keys": 1, "postgres": 1}),
        ("/books/2", READS, {"keys": 1}),
        ("/books/1", WRITES, {"keys": 1}),
        ("/books/1", STRANGER, {"keys": 1}),
    ],
    ids=["kept", "missing", "forbidden", "unknown key"],
)
def test_a_request_counts_a_hit_of_its_key_once(
    path: str, token: str, hits: Mapping[str, int]
) -> None:
    """And one of the item only if it is answered with it."""
    with service() as shop:
        for known in (READS, WRITES, STRANGER):
            shop.ask("/books/1", known)
        before = counted_hits()
        shop.ask(path, token)
        assert counted_hits() - before == Counter(hits)


def counted_hits() -> Counter[str]:
    """Return the hits of all caches of this process, by name."""
    hits: Counter[str] = Counter()
    for each in cache._caches:
        hits[each.name] += each.stats()["hits"]
    return hits


def test_without_keys_all_clients_are_answered() -> None:
    with service(AUTH="off") as shop:
        shop.ask("/books/1", STRANGER)
        assert shop.ask("/books/1", STRANGER)[1]["Cache-Status"].endswith("; hit")
        assert shop.asked == 1
