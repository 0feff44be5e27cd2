"""
Writes to Postgres: a book with two authors and a genre is stored, changed, or stored and deleted.

1. Before anything is measured all must answer the same, but for ids and times.
2. What is changed are the titles of 400 books in turn; what is stored has authors and genres that
   exist, as most new books of a service have.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bench import load
from bench.hey import Result
from bench.rounds import Work
from bench.servers import Server

IDS = range(101, 501)
NEW = {
    "title": "A new book",
    "published": "2001-02-03",
    "authors": ["An author", "Another author"],
    "genres": ["A genre"],
}
CHANGE = {"title": "Another title"}
JSON = {"Content-Type": "application/json"}
DIFFERENT = ("id", "created_at", "updated_at")  # of two answers that are the same otherwise


@dataclass(frozen=True)
class Write(Work):
    """One kind of write; *then* is what is done with what it has made."""

    body: Mapping[str, Any] = field(default_factory=dict)
    then: Literal["delete", "nothing"] = "nothing"

    def ask(self, server: Server, round_: int, requests: int, clients: int) -> Result:
        """Send it so often: to one path, or to each book in turn."""
        urls = [f"{server.url}{self.path}"]
        if "{id}" in self.path:
            urls = [f"PATCH {server.url}{self.path.format(id=each)}" for each in IDS]
        run = load.run(urls, requests, clients, body=json.dumps(self.body), then=self.then)
        return load.together([run], clients, self.status)


INSERT = Write("insert a book", "/books", body=NEW, status=201)
CHANGED = Write("change a book", "/books/{id}", body=CHANGE)
DELETE = Write("insert and delete", "/books", body=NEW, status=204, then="delete")
WRITES = (INSERT, CHANGED, DELETE)


def same_answers(servers: Mapping[str, Server]) -> list[str]:
    """Have everybody store, change and delete a book; return who answers something else."""
    found = {who: _answers(server) for who, server in servers.items()}
    first = next(iter(found.values()))
    return [f"{who} answers {its}, not {first}" for who, its in found.items() if its != first]


def _answers(server: Server) -> list[Any]:
    status, location, body = server.ask("POST", INSERT.path, JSON, json.dumps(NEW))
    answers = [status, _shown(body)]
    path = location or ""
    for method, sent in (("PATCH", json.dumps(CHANGE)), ("GET", None), ("DELETE", None)):
        status, _, body = server.ask(method, path, JSON if sent else None, sent)
        answers += [method, status, _shown(body)]
    return [*answers, server.status(path)]


def _shown(body: bytes) -> Any:
    """Return what an answer has, without what differs from one book to the next."""
    shown = json.loads(body) if body else {}
    for one in (shown, *shown.get("authors", []), *shown.get("genres", [])):
        for name in DIFFERENT:
            one.pop(name, None)
    return shown
