"""
What clients read from the service with a cache, while workers are killed, replaced, and Postgres
restarts.

1. A client notes when it asked, which worker answered, and which version it got. A write makes the
   next version. Programs beside the service write as well, half of the items they alone. A book
   shows the names of its authors, which are changed too. Some items are made and deleted again.
2. A worker that has acknowledged a write answers every later question with that version or a newer
   one. No worker answers with an older one later than ``MAX_STALE_S`` after the acknowledgement. A
   page has each item that was made, and no item that was deleted.

``GREENLINE_LONG_TESTS=1`` has 100,000 answers, with five kills, five reloads and two restarts. What
is killed is a worker that reads announcements.
"""

import json
import os
import random
import re
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import gevent
import psycopg2
import pytest
from bson import ObjectId
from pymongo import MongoClient

from embedded.mongo import Mongo
from embedded.postgres import Postgres, temporary
from tests.helpers.support import IS_LONG, Databases, Service, run, service, wait_until

QUESTIONS = 100_000 if IS_LONG else 4_000
SOME = ["kill", "restart", "freeze", "reload"]
EVENTS = [*["kill", "reload"] * 3, *SOME, *SOME] if IS_LONG else SOME
CLIENTS, WORKERS, ITEMS = 100, 2, 20
MAX_STALE_S = 2.0
WRITES, MADE = 0.1, 0.02  # of the questions of a client
DELETED = 10**9  # newer than each version
FROZEN_S = MAX_STALE_S + 1.5
TIMEOUT_S = 45.0
PAUSE_S = 0.1  # between two writes of another program: one of each item in two seconds
PRODUCT = {
    "title": "x",
    "link": "https://example.com/1",
    "price": {"value": "1", "currency": "EUR"},
}

Key = tuple[str, int | str]
AUTHORED = {"title": "x", "authors": ["y"], "genres": []}


class Checker:
    """What has been acknowledged, by whom and when, and which answers contradict it."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.count = self.hits = self.reads = 0
        # The versions that were acknowledged, with the moment and the worker, in this order.
        self._acknowledged: dict[Key, list[tuple[float, int, str]]] = defaultdict(list)
        self.names: dict[str, tuple[Key, int]] = {}  # of authors: which one's, and its version
        self.books: dict[Key, Key] = {}  # of authors: one that shows the name
        self._made: dict[Key, tuple[float, str]] = {}

    def is_done(self) -> bool:
        return self.count >= QUESTIONS

    def wrote(self, key: Key, version: int, worker: str) -> None:
        self._acknowledged[key].append((time.monotonic(), version, worker))

    def read(self, key: Key, version: int, worker: str, asked_s: float) -> None:
        """Note an answer to a question that was asked at *asked_s*."""
        for acknowledged_s, newer, writer in self._acknowledged[key]:
            if acknowledged_s > asked_s or newer <= version:
                continue
            late_s = asked_s - acknowledged_s
            if worker == writer or late_s > MAX_STALE_S:
                self.violations.append(
                    f"{key}: worker {worker} answered version {version} {late_s:.3f} s after "
                    f"worker {writer} had acknowledged {newer}"
                )

    def made(self, key: Key, worker: str) -> None:
        """Note an item that each page has from now on."""
        self._made[key] = time.monotonic(), worker

    def deletes(self, key: Key) -> None:
        """Note that an item may be missing from now on."""
        del self._made[key]

    def read_page(self, kind: str, ids: set[Any], worker: str, asked_s: float) -> None:
        """Note which items a page has that was asked for at *asked_s*."""
        for key, (made_s, maker) in self._made.items():
            late_s = asked_s - made_s
            is_known = late_s > (0.0 if worker == maker else MAX_STALE_S)
            if key[0] == kind and is_known and key[1] not in ids:
                self.violations.append(
                    f"{key}: a page of worker {worker} lacked it {late_s:.3f} s after "
                    f"worker {maker} had acknowledged it"
                )


class Client:
    """One connection at a time to the service."""

    def __init__(self, port: int, checker: Checker) -> None:
        self._checker = checker
        self._own: Key | None = None
        self._connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[Any, str, bool] | None:
        """Return the body, the worker and whether it is a hit; None: there is no good answer."""
        sent = None if body is None else json.dumps(body)
        try:
            headers = {} if body is None else {"Content-Type": "application/json"}
            self._connection.request(method, path, sent, headers)
            response = self._connection.getresponse()
            text = response.read()
        except (OSError, HTTPException):
            self._connection.close()
            gevent.sleep(0.05)
            return None
        if response.status >= 300:
            gevent.sleep(0.05)
            return None
        found = re.fullmatch(r"greenline-(\d+); (.*)", response.headers["Cache-Status"])
        assert found is not None
        return json.loads(text or b"null"), found[1], found[2] == "hit"

    def go(self, keys: list[Key], chance: random.Random) -> None:
        """Read or write one of *keys*, or read a page of them."""
        checker, (kind, item_id) = self._checker, chance.choice(keys)
        if chance.random() < WRITES:
            kind, item_id = chance.choice(keys[: len(keys) // 2])
            name = f"name {chance.random()}"
            body = {"name" if kind == "authors" else "title": name}
            answer = self.ask("PATCH", f"/{kind}/{item_id}", body)
            if answer is not None:
                checker.count += 1
                checker.wrote((kind, item_id), answer[0]["version"], answer[1])
                if kind == "authors":
                    checker.names[name] = (kind, item_id), answer[0]["version"]
                    # At once, and over the connection to the same worker.
                    self._read(*checker.books[kind, item_id])
            return
        if chance.random() < MADE:
            self._make_or_delete(chance)
            return
        self._read(kind, item_id, is_page=chance.random() < 0.1)

    def _read(self, kind: str, item_id: int | str, *, is_page: bool = False) -> None:
        checker, asked_s = self._checker, time.monotonic()
        path = f"/{kind}?order=-id&limit=100" if is_page else f"/{kind}/{item_id}"
        answer = self.ask("GET", path)
        if answer is None:
            return
        body, worker, is_hit = answer
        checker.count += 1
        checker.reads += 1
        checker.hits += is_hit
        items = body["items"] if is_page else [body]
        for item in items:
            checker.read((kind, item["id"]), item["version"], worker, asked_s)
            for author in item["authors"] if kind == "books" else ():
                # Without a version: the answer to the change was lost, or is not here yet.
                if (name := author["name"]) in checker.names:
                    checker.read(*checker.names[name], worker, asked_s)
        if is_page:
            checker.read_page(kind, {item["id"] for item in items}, worker, asked_s)

    def _make_or_delete(self, chance: random.Random) -> None:
        """Make an item, or delete the one that this client has made."""
        checker, key = self._checker, self._own
        if key is None:
            kind, body = chance.choice(
                [("books", AUTHORED), ("products", {**PRODUCT, "offerId": str(chance.random())})]
            )
            answer = self.ask("POST", f"/{kind}", body)
            if answer is not None:
                checker.count += 1
                self._own = kind, answer[0]["id"]
                checker.made(self._own, answer[1])
            return
        checker.deletes(key)
        answer = self.ask("DELETE", f"/{key[0]}/{key[1]}")
        self._own = None
        if answer is not None:
            checker.count += 1
            checker.wrote(key, DELETED, answer[1])


class Stage:
    """The service, its databases, and what happens to them."""

    def __init__(self, running: Service, server: Postgres, link: Path) -> None:
        self.running, self.server, self._link = running, server, link

    def kill(self) -> None:
        """Kill a worker that reads announcements: it has the lock of a feed."""
        locks = re.findall(r"FLOCK +ADVISORY +WRITE (\d+) ", Path("/proc/locks").read_text())
        reading = set(map(int, locks)) & set(self.running.workers())
        os.kill(reading.pop(), signal.SIGKILL)

    def freeze(self) -> None:
        """Stop each worker for a while: one of them reads announcements."""
        for pid in self.running.workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                gevent.sleep(FROZEN_S)
                os.kill(pid, signal.SIGCONT)

    def reload(self) -> None:
        self.running.process.send_signal(signal.SIGHUP)

    def restart(self) -> None:
        self.server.stop()
        self._link.unlink()
        self.server.start()
        self._link.symlink_to(Path(self.server.socket).parent)


@pytest.fixture
def stage(tmp_path: Path, mongo: Mongo, empty_mongo: str) -> Iterator[Stage]:
    with temporary(60) as server:
        link = tmp_path / "sockets"
        link.symlink_to(Path(server.socket).parent)
        url = server.url.replace(str(Path(server.socket).parent), str(link))
        databases = Databases(url, empty_mongo)
        more = {"GREENLINE_CACHE_BYTES": "16000000", "WEB_CONCURRENCY": str(WORKERS)}
        run(["flask", "db", "upgrade"], {**databases.environ, **more})
        with service({**databases.environ, **more}) as running:
            yield Stage(running, server, link)


@pytest.fixture
def checker() -> Checker:
    return Checker()


@pytest.fixture
def keys(stage: Stage, checker: Checker) -> list[Key]:
    """New books, their authors, and new products."""
    made: list[Key] = []
    books: dict[str, Key] = {}
    with closing(Client(stage.running.port, Checker())) as client:
        for number in range(ITEMS):
            for kind, body in (
                ("books", {**AUTHORED, "authors": [f"author {number}"]}),
                ("products", {**PRODUCT, "offerId": str(number)}),
            ):
                answer = client.ask("POST", f"/{kind}", body)
                assert answer is not None
                made.append((kind, answer[0]["id"]))
            books[f"author {number}"] = made[-2]
        authors = client.ask("GET", "/authors?limit=100")
        assert authors is not None
        assert len(authors[0]["items"]) == ITEMS
        for item in authors[0]["items"]:
            made.append(("authors", item["id"]))
            checker.names[item["name"]] = made[-1], item["version"]
            checker.books[made[-1]] = books[item["name"]]
    random.Random(0).shuffle(made)
    return made


def write_books(stage: Stage, checker: Checker, keys: list[Key]) -> None:
    """Write as another program does, which connects again after a restart."""
    while not checker.is_done():
        with suppress(psycopg2.Error), closing(psycopg2.connect(stage.server.url)) as conn:
            for kind, item_id in keys:
                if kind != "books":
                    continue
                with conn, conn.cursor() as cursor:
                    cursor.execute(
                        "update books set version = version + 1 where id = %s returning version",
                        (item_id,),
                    )
                    version = cursor.fetchone()[0]
                checker.wrote((kind, item_id), version, "none")
                gevent.sleep(PAUSE_S)
        gevent.sleep(PAUSE_S)


def write_products(uri: str, checker: Checker, keys: list[Key]) -> None:
    """The same in MongoDB."""
    with MongoClient(uri) as client:
        products = client.get_default_database().products
        while not checker.is_done():
            for kind, item_id in keys:
                if kind != "products":
                    continue
                written = products.find_one_and_update(
                    {"_id": ObjectId(item_id)}, {"$inc": {"version": 1}}, return_document=True
                )
                checker.wrote((kind, item_id), written["version"], "none")
                gevent.sleep(PAUSE_S)


def test_the_checker_finds_what_contradicts_an_acknowledged_write(checker: Checker) -> None:
    book: Key = ("books", 1)
    checker.wrote(book, 1, "a")
    before_s = time.monotonic()
    checker.wrote(book, 2, "a")
    checker.made(("books", 2), "a")
    now_s = time.monotonic()
    late_s = now_s + MAX_STALE_S + 0.1
    checker.read(book, 1, "a", before_s)
    checker.read(book, 1, "b", now_s)
    checker.read(book, 2, "a", late_s)
    checker.read_page("books", set(), "b", now_s)
    checker.read_page("products", set(), "a", late_s)
    assert checker.violations == []
    for number, read in enumerate(
        [
            lambda: checker.read(book, 1, "a", now_s),
            lambda: checker.read(book, 1, "b", late_s),
            lambda: checker.read_page("books", {1}, "a", now_s),
            lambda: checker.read_page("books", {1}, "b", late_s),
        ],
        1,
    ):
        read()
        assert len(checker.violations) == number


@pytest.mark.timeout(1_200)
def test_no_client_reads_what_is_too_old(
    stage: Stage, checker: Checker, keys: list[Key], empty_mongo: str
) -> None:
    """With clients that write, other programs that do, and what happens to the service."""

    def go(number: int) -> None:
        chance = random.Random(number)
        with closing(Client(stage.running.port, checker)) as client:
            while not checker.is_done():
                client.go(keys, chance)

    clients = [gevent.spawn(go, number) for number in range(CLIENTS)]
    others = [
        # The name of an author reaches the others by its own announcement alone.
        gevent.spawn(write_books, stage, checker, keys[::2]),
        gevent.spawn(write_products, empty_mongo, checker, keys),
    ]
    for number, event in enumerate(EVENTS, 1):
        share = QUESTIONS * number // (len(EVENTS) + 1)
        wait_until(lambda s=share: checker.count >= s, "the questions before", TIMEOUT_S * 10)
        getattr(stage, event)()
    gevent.joinall([*clients, *others], raise_error=True)
    assert checker.violations == []
    assert checker.hits > 0.2 * checker.reads > 0
    print(f"{checker.count} questions, {checker.reads} reads, {checker.hits} hits")
