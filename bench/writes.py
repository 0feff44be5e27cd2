"""
Writes to Postgres: a book with two authors and a genre is stored, changed, or stored and deleted.

1. Before anything is measured all must answer the same, but for ids and times.
2. What is changed are the titles of 400 books in turn; what is stored has authors and genres that
   exist, as most new books of a service have.
"""

import http.client
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bench import load, report
from bench.hey import Result
from bench.rounds import ROUND_S, interleaved, refused, requests_for
from bench.servers import Server

IDS = range(101, 501)
NEW = {
    "title": "A new book",
    "published": "2001-02-03",
    "authors": ["An author", "Another author"],
    "genres": ["A genre"],
}
CHANGE = {"title": "Another title"}
DIFFERENT = ("id", "created_at", "updated_at")  # of two answers that are the same otherwise


@dataclass(frozen=True)
class Write:
    """One kind of write, what it sends, and the status of its answers."""

    name: str
    body: Mapping[str, Any]
    status: int
    then: Literal["delete", "nothing"] = "nothing"

    def ask(self, server: Server, requests: int, clients: int) -> Result:
        """Send it so often."""
        urls = [f"{server.url}/books"]
        if self.status == 200:
            urls = [f"PATCH {server.url}/books/{each}" for each in IDS]
        run = load.run(urls, requests, clients, body=json.dumps(self.body), then=self.then)
        return load.together([run], clients, self.status)


INSERT = Write("insert a book", NEW, 201)
CHANGED = Write("change a book", CHANGE, 200)
DELETE = Write("insert and delete", NEW, 204, "delete")
WRITES = (INSERT, CHANGED, DELETE)


def same_answers(servers: Mapping[str, Server]) -> list[str]:
    """Have everybody store, change and delete a book; return who answers something else."""
    found = {who: _answers(server) for who, server in servers.items()}
    first = next(iter(found.values()))
    return [f"{who} answers {its}, not {first}" for who, its in found.items() if its != first]


def _answers(server: Server) -> list[Any]:
    status, location, body = _ask(server, "POST", "/books", NEW)
    answers = [status, _shown(body)]
    path = location or ""
    for method, sent in (("PATCH", CHANGE), ("GET", None), ("DELETE", None)):
        status, _, body = _ask(server, method, path, sent)
        answers += [method, status, _shown(body)]
    return [*answers, server.status(path)]


def _ask(
    server: Server, method: str, path: str, sent: Mapping[str, Any] | None
) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        headers = {} if sent is None else {"Content-Type": "application/json"}
        body = None if sent is None else json.dumps(sent)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Location"), answer.read()
    finally:
        connection.close()


def _shown(body: bytes) -> Any:
    """Return what an answer has, without what differs from one book to the next."""
    shown = json.loads(body) if body else {}
    for one in (shown, *shown.get("authors", []), *shown.get("genres", [])):
        for name in DIFFERENT:
            one.pop(name, None)
    return shown


def compete(
    found: report.Report, servers: Mapping[str, Server], write: Write, clients: int, rounds: int
) -> None:
    """Measure all *servers* at *write* with *clients* connections; rows and problems are kept."""
    print(f"{write.name}, {clients} connections", file=sys.stderr, flush=True)
    # The second is warm, and says how many a round has.
    speeds = [
        [write.ask(server, 20 * clients, clients) for _ in range(2)][1].req_s
        for server in servers.values()
    ]
    counts = [requests_for(max(speed, 1.0), ROUND_S, clients) for speed in speeds]
    rows: dict[str, list[report.Row]] = {who: [] for who in servers}
    for round_, place in interleaved(range(len(servers)), rounds):
        who, server = [*servers.items()][place]
        before_us = server.cpu_us()
        result = write.ask(server, counts[place], clients)
        cpu_us = round((server.cpu_us() - before_us) / result.asked, 1)
        if problem := refused(result.answers, write.status):
            found.invalid(f"{write.name} {who} {clients} clients, round {round_ + 1}: {problem}")
            return
        rows[who].append(report.row(write.name, who, result, server.rss_mb(), cpu_us=cpu_us))
    for each in rows.values():
        found.add(report.middle(each))
