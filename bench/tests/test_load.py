"""
The load generator of ``bench.api``, built and run against a small server.

Building it takes a minute: it is done for ``GREENLINE_LONG_TESTS=1``, or where a bench did it.
"""

import http.server
import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from bench import hey_build, load
from tests.helpers.support import IS_LONG

pytestmark = pytest.mark.skipif(
    not IS_LONG and not hey_build.path_of(load.SOURCES).exists(),
    reason="it is not built, and that takes a minute",
)


class Shelf(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted; each third is lost, each fifth comes back as something else."""

    protocol_version = "HTTP/1.1"
    kept: "dict[str, bytes]"
    clients: "Counter[tuple[str, int]]"

    def do_GET(self) -> None:
        self.clients[self.client_address] += 1
        body = self.kept.get(self.path, b"{}" if self.path == "/there" else None)
        self._answer(200 if body is not None else 404, body or b"nothing")

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        number = len(self.kept) + 1
        path = f"/kept/{number}"
        self.kept[path] = b"other" if number % 5 == 0 else sent
        if number % 3 == 0:
            path = "/lost"
        self._answer(201, sent, path)

    def do_DELETE(self) -> None:
        self._answer(204 if self.kept.pop(self.path, None) else 404, b"")

    def _answer(self, status: int, body: bytes, location: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if location is not None:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def shelf() -> type[Shelf]:
    """Return a handler with nothing on it yet."""
    return type("Empty", (Shelf,), {"kept": {}, "clients": Counter()})


@pytest.fixture
def url(shelf: type[Shelf]) -> Iterator[str]:
    """Serve the shelf."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), shelf) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def statuses(run: load.Run) -> dict[str, int]:
    """Count the answers by status."""
    return dict(Counter(each.status for each in run.answers))


def test_all_are_asked_in_turn_over_as_many_connections(url: str, shelf: type[Shelf]) -> None:
    """Two paths are asked for alternately, each client keeps its one connection, and all count."""
    run = load.run([f"{url}/there", f"{url}/gone"], 100, 5)
    assert statuses(run) == {"200": 50, "404": 50}
    assert len(shelf.clients) <= 5
    assert sum(shelf.clients.values()) == 100
    assert 0 < run.seconds < 60
    assert all(each.took_s > 0 for each in run.answers)


def test_an_insert_is_found_or_reported(url: str) -> None:
    """With one client of 30 inserts ten are lost, four are other things, and sixteen are found."""
    run = load.run([f"{url}/kept"], 30, 1, body=json.dumps({"a": 1}))
    assert statuses(run) == {"200": 16, "404": 10, "differs": 4}


def test_what_was_inserted_is_deleted(url: str, shelf: type[Shelf]) -> None:
    """A third is lost, and the rest is gone; alone, an insert is a 201."""
    run = load.run([f"{url}/kept"], 3, 1, body=json.dumps({"a": 1}), then="delete")
    assert statuses(run).keys() <= {"204", "404"}
    assert statuses(run)["204"] >= 2
    run = load.run([f"{url}/kept"], 3, 1, body=json.dumps({"a": 1}), then="nothing")
    assert statuses(run) == {"201": 3}


def test_a_number_in_the_body_is_another_one_each_time(url: str, shelf: type[Shelf]) -> None:
    """Eight digits, in the place of the eight characters of ``{number}``."""
    load.run_for([f"{url}/kept"], 0.3, 2, marker="", headers={}, body='{"a": "{number}"}')
    sent = {json.loads(body)["a"] for body in shelf.kept.values() if body != b"other"}
    assert "00000000" in sent
    assert len(sent) == sum(body != b"other" for body in shelf.kept.values())


def test_no_server_there_is_an_error() -> None:
    """What cannot connect counts, each operation of it."""
    assert statuses(load.run(["http://127.0.0.1:9/there"], 4, 2)) == {"error": 4}
