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
from app.store.agents import Agents
from app.store.authors import Authors
from app.store.books import Books
from app.store.genres import Genres
from app.store.keys import Grant, Keys
from app.store.ports import Stored
from app.store.products import Products
from config import load
from greenline.cache import cache
from greenline.flask import Flask
from greenline.mongo import OpenMongo
from greenline.postgres import OpenPostgres

READS, WRITES, STRANGER = (tokens.make().text for _ in range(3))
GRANTS = {READS: Grant(1, frozenset(["read"])), WRITES: Grant(2, frozenset(["write"]))}
# With a condition the item is looked up by the view.
BY_FLASK = {"If-None-Match": '"0"'}


MONGO = "mongodb://127.0.0.1:1/none"
OBJECT_ID = "6" * 24
# The repository of each resource, and the id of its only item.
KEPT: dict[type, int | str] = {Books: 1, Authors: 1, Genres: 1, Agents: 1, Products: OBJECT_ID}


def get(repository: Any, item_id: int | str) -> Stored:
    """Read the only item."""
    if item_id != KEPT[type(repository)]:
        raise NotFound
    return Stored(item_id, 4, b'{"name":"%s"}' % repository.name.encode())


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
        for repository in KEPT:
            patch.setattr(repository, "get", get)
        patch.setattr(Keys, "find", lambda _, token: GRANTS.get(token))
        for opened in (OpenPostgres, OpenMongo):
            patch.setattr(opened, "feed", lambda _: None)  # what is kept gets no older
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
    with service(MONGODB_URI=MONGO) as made:
        yield made


@pytest.mark.parametrize("repository", KEPT, ids=lambda each: each.name)
def test_a_kept_item_is_answered_before_flask(repository: Any) -> None:
    """With all that Flask's answer has, which loaded it."""
    name, one = repository.name, KEPT[repository]
    with service(MONGODB_URI=MONGO) as shop:
        status, headers, _ = shop.ask(f"/{name}/{one}", READS)
        assert headers["Cache-Status"].endswith("; fwd=miss")
        for _ in range(3):
            found = shop.ask(f"/{name}/{one}", READS)
            assert found[0] == status == "200 OK"
            assert found[1]["Cache-Status"].endswith("; hit")
        assert shop.asked == 1
        converter = "id" if isinstance(one, int) else "objectid"
        assert shop.environ["greenline.route"] == f"/{name}/<{converter}:item_id>"


@pytest.mark.parametrize(
    "token",
    [READS, WRITES, STRANGER, "no token"],
    ids=["reads", "writes", "unknown", "malformed"],
)
@pytest.mark.parametrize(
    "path",
    [
        "/{name}/{one}", "/{name}/{one}?x=1", "/{name}/0{one}", "/{name}/{one}/", "/{name}/{other}",
        "/{name}/x", "/{name}/", "/{name}/{one}%20", "/{name}/{upper}", "/{name}/%C3%A9",
        "/{name}/page%20%7B%7D", "/{name}/{long}", "/{noun}/{one}", "//{name}/{one}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("repository", KEPT, ids=lambda each: each.name)
def test_flask_would_answer_the_same(shop: Shop, repository: Any, path: str, token: str) -> None:
    """Status, headers, body and route, whatever the path, the key and the media type."""
    name, one = repository.name, str(KEPT[repository])
    noun, other = name.removesuffix("s"), one.translate({ord("1"): "2", ord("6"): "a"})
    asked = path.format(
        name=name, noun=noun, one=one, other=other, upper=other.upper(), long="1" * 2_000
    )
    kept = shop.ask(f"/{name}/{one}", READS)[2]  # from now on
    assert name.encode() in kept
    asks = [("GET", accept) for accept in (None, "*/*", "application/json;q=0.5", "text/html", "")]
    for method, accept in (*asks, ("HEAD", None), ("OPTIONS", None)):
        headers = {} if accept is None else {"Accept": accept}
        found = shop.ask(asked, token, method, **headers)
        seen = shop.environ.get("greenline.route"), shop.asked + 1
        assert found == shop.ask(asked, token, method, **headers, **BY_FLASK)
        assert seen == (shop.environ.get("greenline.route"), shop.asked)


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
