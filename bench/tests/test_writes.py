"""Writes to Postgres: what has to be the same, what is sent, and what is judged."""

import http.server
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from bench import load, postgres, report, writes
from bench.servers import Server
from bench.vegeta import Answer


class Books(http.server.BaseHTTPRequestHandler):
    """Keeps books in a dict, with *extra* fields in each answer."""

    kept: ClassVar[dict[str, Any]]
    extra: ClassVar[dict[str, Any]]

    def do_POST(self) -> None:
        path = f"/books/{len(self.kept) + 7}"
        self.kept[path] = {**self._sent(), "id": len(self.kept), **self.extra}
        self._answer(201, self.kept[path], path)

    def do_PATCH(self) -> None:
        self.kept[self.path].update(self._sent())
        self._answer(200, self.kept[self.path])

    def do_GET(self) -> None:
        self._answer(200 if self.path in self.kept else 404, self.kept.get(self.path, {}))

    def do_DELETE(self) -> None:
        del self.kept[self.path]
        self._answer(204, None)

    def _sent(self) -> Any:
        book = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        # Shown as the service does, with ids that differ from one server to the next.
        ids = id(self.kept)
        shown = {name: [{"id": ids, "name": each} for each in book.get(name, [])]
                 for name in ("authors", "genres") if name in book}  # fmt: skip
        return {**book, **shown}

    def _answer(self, status: int, body: Any, location: str = "") -> None:
        sent = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Location", location)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def servers() -> Iterator[dict[str, Any]]:
    """Two that answer the same, and one that has another version."""
    running = {}
    for who, version in (("one", 1), ("two", 1), ("other", 2)):
        handler = type(who, (Books,), {"kept": {}, "extra": {"version": version}})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        found = SimpleNamespace(port=port, url=f"http://127.0.0.1:{port}", running=server)
        found.get = lambda path, headers=None, its=found: Server.get(its, path, headers)
        found.ask = lambda *args, its=found: Server.ask(its, *args)
        found.status = lambda path, its=found: Server.status(its, path)
        running[who] = found
    yield running
    for each in running.values():
        each.running.shutdown()
        each.running.server_close()


def test_answers_may_differ_in_ids_and_times_alone(servers: dict[str, Any]) -> None:
    one, two, other = servers.values()
    assert writes.same_answers({"one": one, "two": two}) == []
    (problem,) = writes.same_answers({"one": one, "other": other})
    assert "other answers" in problem


def test_each_write_is_sent_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """One to each of many books, or to the list of them."""
    sent: list[tuple[list[str], int, int, Any]] = []

    def run(urls: list[str], operations: int, clients: int, **more: Any) -> load.Run:
        sent.append((urls, operations, clients, more))
        return load.Run([Answer(0.0, 0.1, "201")] * operations, 1.0)

    monkeypatch.setattr(load, "run", run)
    server: Any = SimpleNamespace(url="http://h")
    for write in writes.WRITES:
        write.ask(server, 0, 6, 2)
    insert, change, _ = sent
    assert insert[:3] == (["http://h/books"], 6, 2)
    assert len(change[0]) == len(set(change[0])) == len(writes.IDS)
    assert {url.partition(" ")[0] for url in change[0]} == {"PATCH"}
    assert [one[3]["then"] for one in sent] == ["nothing", "nothing", "delete"]
    assert writes.INSERT.ask(server, 0, 6, 2).req_s == 6
    assert writes.CHANGED.ask(server, 0, 6, 2).req_s == 0


def test_writes_are_judged_by_both_peers() -> None:
    """And a list of 100 by the processor time as well."""

    def row(work: str, who: str, req_s: float, cpu_us: float = 100.0) -> report.Row:
        return report.Row(work, who, 10, {"200": 1}, 1.0, req_s, more={"cpu_us": cpu_us})

    name = writes.CHANGED.name
    rows = [
        row(name, report.OURS, 100), row(name, postgres.ASYNCPG, 101),
        row(name, postgres.SQLALCHEMY, 25), row("list-100", report.OURS, 100, 100),
        row("list-100", postgres.ASYNCPG, 90, 120), row("list-100", postgres.SQLALCHEMY, 90),
    ]  # fmt: skip
    assert [verdict.kept for verdict in postgres.verdicts(rows)] == [False, True, True, False]
