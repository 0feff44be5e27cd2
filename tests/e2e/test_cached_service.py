"""The service with a cache: what it keeps, and that no write is missed."""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any

import gevent
import psycopg2
import pytest
from pymongo import MongoClient

from embedded.mongo import Mongo
from tests.helpers.support import LIMIT_S, Answer, Databases, Service, run, service, wait_until

WORKERS = 2
PRODUCT = {
    "title": "Tea",
    "link": "https://example.com/1",
    "price": {"value": "9.90", "currency": "EUR"},
}
MAX_STALE_S = 2.0
SLACK_S = 1.0


class Shop:
    """The service, each of whose workers is asked apart."""

    def __init__(self, running: Service, database: str) -> None:
        self.running = running
        self.database = database
        self.workers: set[str] = set()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[Answer, str, str]:
        """Return the answer, the worker of its cache, and where it comes from."""
        answer = self.running.ask(method, path, body)
        assert answer.status < 300, answer.body
        return answer, *_cache_status(answer.headers)

    def get(self, path: str) -> Mapping[str, str]:
        """Return the body that each worker answers with."""
        found: dict[str, str] = {}

        def answers() -> bool:
            answer, worker, _ = self.ask("GET", path)
            found[worker] = answer.body.decode()
            return len(found) == WORKERS

        wait_until(answers, "an answer of each worker")
        return found

    def keep(self, path: str) -> None:
        """Let each worker keep *path*."""
        kept = set()

        def hit() -> bool:
            _, worker, found = self.ask("GET", path)
            if found == "hit":
                kept.add(worker)
            return len(kept) == WORKERS

        wait_until(hit, f"hits of {path}")

    def wait_for_another(self, path: str, old: Mapping[str, str]) -> float:
        """Wait until none answers *path* as before; return when one that did was last asked."""
        last_s = 0.0
        others: set[str] = set()

        def is_seen() -> bool:
            nonlocal last_s
            asked_s = time.monotonic()
            answer, worker, _ = self.ask("GET", path)
            if answer.body.decode() in old.values():
                last_s = asked_s
                others.discard(worker)
            else:
                others.add(worker)
            return len(others) == WORKERS

        # One worker may answer all for a while: how long this takes tells nothing of their caches.
        wait_until(is_seen, "the write")
        return last_s

    def write(self, statement: str) -> None:
        """Write as another program does."""
        with closing(psycopg2.connect(self.database)) as conn, conn, conn.cursor() as cursor:
            cursor.execute(statement)


def _cache_status(headers: Mapping[str, str]) -> tuple[str, str]:
    found = re.fullmatch(r"greenline-(\d+); (.*)", headers["Cache-Status"])
    assert found is not None, headers
    return found[1], found[2]


def ask_on(connection: HTTPConnection, path: str) -> tuple[str, str]:
    """Return the worker that *connection* is open to, and where its answer comes from."""
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    response.read()
    return _cache_status(dict(response.getheaders()))


@pytest.fixture(scope="module")
def shop(databases: Databases) -> Iterator[Shop]:
    more = {"GREENLINE_CACHE_BYTES": "64000000", "WEB_CONCURRENCY": str(WORKERS)}
    run(["flask", "db", "upgrade"], {**databases.environ, **more})
    with service({**databases.environ, **more}) as running:
        yield Shop(running, databases.postgres)


@pytest.fixture
def book(shop: Shop) -> int:
    """The id of a new book."""
    sent = {"title": "Dune", "authors": ["Frank Herbert"], "genres": ["novel"]}
    answer, _, _ = shop.ask("POST", "/books", sent)
    return int(answer.json["id"])


def test_an_item_and_a_first_page_are_kept(shop: Shop, book: int) -> None:
    assert shop.ask("GET", f"/books/{book}")[2] == "fwd=miss"
    for path in (f"/books/{book}", "/books?limit=5", "/authors/1", "/genres", "/agents/1"):
        shop.keep(path)


def test_what_else_is_read_is_not_kept(shop: Shop, book: int) -> None:
    listed, _, _ = shop.ask("GET", "/books?limit=1")
    for path in ("/books?page=2", f"/books?after={listed.json['next']}", "/tasks", "/tasks/1"):
        for _ in range(2 * WORKERS):
            assert shop.ask("GET", path)[2] == "fwd=bypass"
    assert shop.ask("POST", "/books/batch-get", {"ids": [book]})[2] == "fwd=method"


def test_a_kept_item_has_its_version(shop: Shop, book: int) -> None:
    shop.keep(f"/books/{book}")
    tag = shop.ask("GET", f"/books/{book}")[0].headers["ETag"]
    answer = shop.running.ask("GET", f"/books/{book}", headers={"If-None-Match": tag})
    assert (answer.status, answer.headers["Cache-Status"].endswith("hit")) == (304, True)


def rename(shop: Shop, path: str) -> tuple[Answer, str, str]:
    return shop.ask("PATCH", path, {"name": f"Other {time.monotonic_ns()}"})


@pytest.mark.parametrize(
    "change",
    [
        lambda shop, book: shop.ask("PATCH", f"/books/{book}", {"title": "Other"}),
        lambda shop, book: shop.ask(
            "PATCH", "/books/batch", {"items": [{"id": book, "patch": {"title": "Other"}}]}
        ),
        lambda shop, book: rename(shop, "/authors/by-name/Frank%20Herbert"),
        lambda shop, book: rename(shop, "/genres/by-name/novel"),
    ],
    ids=["a change", "a batch", "an author's name", "a genre's name"],
)
def test_the_worker_that_writes_reads_its_write(
    shop: Shop, book: int, change: Callable[[Shop, int], tuple[Answer, str, str]]
) -> None:
    """At once, and the other one in less than max_stale_s."""
    paths = [f"/books/{book}", "/books?order=-id"]
    for path in paths:
        shop.keep(path)
    before = [shop.get(path) for path in paths]
    _, writer, _ = change(shop, book)
    written_s = time.monotonic()
    for path, old in zip(paths, before, strict=True):
        assert shop.get(path)[writer] != old[writer]
        assert shop.wait_for_another(path, old) - written_s < MAX_STALE_S


def test_products_are_kept_until_they_change(shop: Shop, databases: Databases) -> None:
    name = f"product {time.monotonic_ns()}"
    made, _, _ = shop.ask("POST", "/products", {**PRODUCT, "offerId": name, "brand": "old"})
    paths = [f"/products/{made.json['id']}", "/products?order=-id"]
    for path in paths:
        shop.keep(path)
    before = [shop.get(path) for path in paths]
    _, writer, _ = shop.ask("PATCH", paths[0], {"brand": "new"})
    for path, old in zip(paths, before, strict=True):
        assert shop.get(path)[writer] != old[writer]
        shop.wait_for_another(path, old)
        shop.keep(path)
    before = [shop.get(path) for path in paths]
    with MongoClient(databases.mongo) as client:
        products = client.greenline.products
        products.update_one({"offerId": name}, {"$set": {"brand": "newer"}})
    written_s = time.monotonic()
    for path, old in zip(paths, before, strict=True):
        assert shop.wait_for_another(path, old) - written_s < MAX_STALE_S


@pytest.mark.parametrize("way", ["one", "batch", "where"])
def test_a_deleted_item_is_gone(shop: Shop, book: int, way: str) -> None:
    shop.keep(f"/books/{book}")
    title = f"Gone {book}"
    shop.ask("PATCH", f"/books/{book}", {"title": title})
    shop.keep(f"/books/{book}")
    if way == "one":
        shop.ask("DELETE", f"/books/{book}")
    elif way == "batch":
        shop.ask("DELETE", "/books/batch", {"ids": [book]})
    else:
        shop.ask("DELETE", f"/books?title={title.replace(' ', '+')}")

    def is_gone() -> bool:
        return shop.running.ask("GET", f"/books/{book}").status == 404

    limit_s = MAX_STALE_S + SLACK_S
    wait_until(lambda: all(is_gone() for _ in range(4 * WORKERS)), "it to be gone", limit_s)


def test_new_authors_are_listed_at_once(shop: Shop) -> None:
    path = "/authors?order=-id&limit=1"
    shop.keep(path)
    name = f"Author {time.time()}"
    _, writer, _ = shop.ask("POST", "/books", {"title": "New", "authors": [name], "genres": []})
    assert name in shop.get(path)[writer]


@pytest.mark.parametrize(
    "statement",
    [
        "update books set title = 'By SQL', version = version + 1 where id = {}",
        "delete from book_genres where book_id = {}",
        "update authors set name = name || '.' where name like 'Frank Herbert%' /* {} */",
    ],
    ids=["a row", "a link", "an author"],
)
def test_writes_of_other_programs_are_seen(shop: Shop, book: int, statement: str) -> None:
    paths = [f"/books/{book}", "/books?order=-id&limit=5"]
    for path in paths:
        shop.keep(path)
    before = [shop.get(path) for path in paths]
    shop.write(statement.format(book))
    written_s = time.monotonic()
    for path, old in zip(paths, before, strict=True):
        assert shop.wait_for_another(path, old) - written_s < MAX_STALE_S


def test_without_the_setting_nothing_says_so(api: Service) -> None:
    assert "Cache-Status" not in api.ask("GET", "/books/1").headers


def test_a_page_that_both_workers_want_is_loaded_once(shop: Shop) -> None:
    path = f"/books?title={time.monotonic_ns()}"
    with ExitStack() as open_, closing(psycopg2.connect(shop.database)) as conn:
        # One worker may accept all connections of a burst, so they are opened one after the other.
        of_workers: dict[str, list[HTTPConnection]] = defaultdict(list)

        def ten_each() -> bool:
            connection = HTTPConnection("127.0.0.1", shop.running.port, timeout=LIMIT_S)
            open_.callback(connection.close)
            of_workers[ask_on(connection, "/genres")[0]].append(connection)
            return len(of_workers) == WORKERS and min(map(len, of_workers.values())) > 10

        wait_until(ten_each, "more than ten connections to each worker")
        with conn.cursor() as cursor:
            cursor.execute("lock table books in access exclusive mode")
        asking = [
            gevent.spawn(ask_on, connection, path)
            for connections in of_workers.values()
            for connection in connections[:10]
        ]
        with conn.cursor() as cursor:
            wait_until(lambda: _waits_for_books(cursor), "the load")
        # The others ask meanwhile: nothing shows that all of them wait. But each worker goes on,
        # and has read what was asked before: it answers what is asked later.
        for connections in of_workers.values():
            for _ in range(3):
                ask_on(connections[10], "/genres")
        gevent.sleep(0.5)
        conn.rollback()
        answers = [job.get(timeout=LIMIT_S) for job in asking]
    assert {worker for worker, _ in answers} == set(map(str, shop.running.workers()))
    found = Counter(where for _, where in answers)
    assert found == {"fwd=miss": 1, "fwd=miss; collapsed": 19}


def _waits_for_books(cursor: Any) -> bool:
    cursor.execute("select from pg_locks where relation = 'books'::regclass and not granted")
    return bool(cursor.fetchall())


def test_a_service_whose_tables_announce_nothing_is_not_ready(
    empty_database: str, mongo: Mongo
) -> None:
    """Until they do; and nothing is kept that is read from a secondary."""
    uri = f"{mongo.url.partition('?')[0]}?readPreference=secondaryPreferred"
    databases = Databases(empty_database, uri).environ
    run(["flask", "db", "upgrade", "sample"], databases)
    with service({**databases, "GREENLINE_CACHE_BYTES": "1000000"}, wait=False) as running:
        wait_until(running.is_alive, "the service")
        wait_until(
            lambda: not running.is_ready() and "do not announce their writes" in running.log,
            "the reason",
        )
        assert "products are not kept: MONGODB_URI reads from secondaries" in running.log
        run(["flask", "db", "upgrade"], {**databases, "GREENLINE_CACHE_BYTES": "1000000"})
        wait_until(running.is_ready, "the service to be ready")
        for _ in range(2 * WORKERS):
            answer = running.get("/products")
            assert answer.headers["Cache-Status"].endswith("fwd=bypass")
