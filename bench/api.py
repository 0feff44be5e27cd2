"""
The API on both databases: our service beside other ways to serve the same JSON.

1. All servers of a part have one worker, or for states and messages as many as are asked for. They
   are started once on the same databases with the sample data, and idle while another is measured.
2. Before anything is measured all must answer the same to the same questions, and find what each
   of the others inserted; who needs a key must refuse those who have none.
3. The clients, the servers and the databases share the cores: only the ratios mean something.
4. States and messages are asked for on two engines: one in memory, which has no limit, and
   SecantusDB or the MongoDB of MONGODB_URI. The finds are judged on the first: by requests a second
   of the server's own processor time, for which it does not count how busy the machine is, and by
   requests a second and the 99th percentile, which must be no worse than any peer's.

    python -m bench.api [--rounds 3] [--workers 1] [--only agents books states messages products]
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg2

from bench import engine, lineup, mongodb, operations, products, promises, report
from bench.bodies import differences
from bench.contenders import flask
from bench.failures import FAILURES
from bench.operations import Task
from bench.postgres import settle
from bench.rounds import ROUND_S, Work, compare, compete, same_answers
from bench.servers import Server, allow_files
from embedded.postgres import temporary

ROUNDS = 3
MAX_CONNECTIONS = 200
AGENT_CLIENTS = (100,)
BOOK_CLIENTS = (10, 100)
BOOKS = (
    Work("books-20", "/books?limit=20", part="items"),
    Work("books-100", "/books?limit=100", part="items"),
)
AGENT, AGENTS = "/agents/7", "/agents?limit=50"
MORE_AGENTS = "insert into agents (name) select 'bench ' || n from generate_series(1, 50) n"
STATES = [f"/states/{number:024x}" for number in range(1, 101)]
MESSAGE = json.dumps(
    {"task_id": 17, "agent_id": 4, "role": "user", "content": "What is to be done next? " * 10}
)
FIND = Task("find-state", 10_000, STATES, clients=(50, 100, 200, 500, 1_000))
INSERT_AND_FIND = Task("insert+find", 20_000, ["/messages"], clients=(100, 500), body=MESSAGE)
# The whole bench is to take minutes.
SECANTUSDB_COUNTS = {FIND.name: 4_000, INSERT_AND_FIND.name: 2_000}
# Finds a second of the server's processor time, ours over a peer's, by the number of clients.
ASYNC = "fastapi-pymongo-async"
ASYNC_FLOORS = {50: 1.5, 100: 1.5, 200: 1.5, 500: 1.25, 1_000: 1.25}
THREADS_FLOOR = 1.2
NOTES = f"""
agents, books: asked by hey, each with {lineup.POOL_SIZE} connections to Postgres; a row is the
middle one of its rounds
states, messages: asked by bench.load, each with up to {lineup.MONGODB_POOL_SIZE} connections to
MongoDB; a row is all of its rounds together
agents with a key: ours remembers a verified key for a second, the other one asks Postgres each
time; nowhere else is a key asked for
books: of a page only the books are compared; ours alone says where it goes on, which costs it a
little
{FIND.name}: by its id, another one of {len(STATES)} each time
{INSERT_AND_FIND.name}: a message, then itself by its id, which must be the same; both together
are one operation
on: {engine.NAME} keeps documents in memory and has no limit; SecantusDB is asked for fewer
fastapi-to-thread has as many threads as asyncio gives it, gthread has {lineup.THREADS}
lacking: a page of {products.COUNT:,} products without the field, or with its default
cpu ms, db ms: what server and database spent of the processors for one operation
rss MB: of all processes of a server, gunicorn's arbiter too"""


@dataclass(frozen=True)
class Bench:
    """What all parts need."""

    found: report.Report
    rounds: int
    workers: int
    database_url: str
    mongo: mongodb.Lent
    folder: Path

    def peers(self, mongo: mongodb.Lent) -> list[lineup.Peer]:
        """Return who has states and messages on *mongo*."""
        return lineup.documents(self.database_url, mongo.uri, self.workers)

    @contextmanager
    def started(self, peers: Sequence[lineup.Peer]) -> Iterator[dict[str, Server]]:
        """Start *peers* for the length of the block."""
        with ExitStack() as stack:
            servers = {}
            for peer in peers:
                print(f"starting {peer.who}", file=sys.stderr, flush=True)
                servers[peer.who] = stack.enter_context(peer.server(self.folder))
            yield servers

    def is_wrong(self, problems: Iterator[str]) -> bool:
        """Keep *problems*; return whether there are any."""
        before = len(self.found.problems)
        for problem in problems:
            self.found.invalid(problem)
        return len(self.found.problems) > before


def agents(bench: Bench) -> None:
    """Ask for an agent, and for a page of them, with an API key."""
    with closing(psycopg2.connect(bench.database_url)) as conn, conn, conn.cursor() as cursor:
        cursor.execute(MORE_AGENTS)
    peers = lineup.with_keys(bench.database_url, bench.mongo.uri)
    made = flask(
        "keys", "create", "--name", "bench", "--scopes", "read,write",
        env={**os.environ, **peers[0].env},
    )  # fmt: skip
    key = {"Authorization": f"Bearer {made.strip()}"}
    works = [
        Work("agent-with-key", AGENT, key),
        Work("agents-50-with-key", AGENTS, key, part="items"),
    ]
    with bench.started(peers) as servers:
        if bench.is_wrong(same_answers(servers, works)) or bench.is_wrong(let_in(servers)):
            return
        for work in works:
            for clients in AGENT_CLIENTS:
                compete(bench.found, servers, work, clients, bench.rounds)


def let_in(servers: Mapping[str, Server]) -> Iterator[str]:
    """Say who lets in somebody without a key."""
    for who, server in servers.items():
        status = server.status(AGENT)
        if status != 401:
            yield f"{AGENT}: {who} answers {status} to somebody without a key"


def books(bench: Bench) -> None:
    """Ask for pages of books."""
    peers = [
        peer
        for peer in lineup.lineup(bench.database_url, bench.mongo.uri)
        if peer.who != lineup.WITHOUT_PREPARE
    ]
    with bench.started(peers) as servers:
        if bench.is_wrong(same_answers(servers, BOOKS)):
            return
        for work in BOOKS:
            for clients in BOOK_CLIENTS:
                compete(bench.found, servers, work, clients, bench.rounds)


def states(bench: Bench) -> None:
    """Find states by their ids."""
    with mongodb.in_memory() as memory:
        bench.mongo.copy("states", memory)
        for mongo in (memory, bench.mongo):
            with bench.started(bench.peers(mongo)) as servers:
                works = [Work(FIND.name, path) for path in STATES[:5]]
                if not bench.is_wrong(same_answers(servers, works)):
                    measure(bench, mongo, servers, FIND)


def messages(bench: Bench) -> None:
    """Insert messages and find them."""
    with mongodb.in_memory() as memory:
        bench.mongo.copy("states", memory)  # a server is ready when it finds one
        for mongo in (memory, bench.mongo):
            with bench.started(bench.peers(mongo)) as servers:
                if not bench.is_wrong(not_found(servers, INSERT_AND_FIND)):
                    measure(bench, mongo, servers, INSERT_AND_FIND)


def not_found(servers: Mapping[str, Server], task: Task) -> Iterator[str]:
    """Let everybody insert, and everybody find it; say who answers something else than was sent."""
    headers = {"Content-Type": "application/json"}
    for who, server in servers.items():
        status, location, made = server.ask("POST", task.paths[0], headers, task.body)
        if status != 201 or location is None:
            yield f"{task.name}: {who} answers {status}, with Location {location}: {made[:200]!r}"
            continue
        answers = {f"{who} at its insert": (200, made)}
        answers.update({each: other.get(location) for each, other in servers.items()})
        for problem in differences(answers):
            yield f"{task.name}: {problem}"


def measure(bench: Bench, mongo: mongodb.Lent, servers: Mapping[str, Server], task: Task) -> None:
    """Let *servers* compete at *task* on *mongo*; a slow one has less to do."""
    if mongo.is_slow:
        task = replace(task, count=SECANTUSDB_COUNTS[task.name])
    for clients in task.clients:
        operations.compete(
            bench.found, servers, task, clients, bench.rounds,
            clear=lambda: mongo.clear("messages"), database=mongo.pid, on=mongo.name,
        )  # fmt: skip


def verdicts(rows: Sequence[report.Row]) -> list[promises.Verdict]:
    """Judge the finds on the engine in memory by their cost, their speed and their slowest."""
    found = []
    for ours, its in report.pairs(rows):
        if (ours.work, ours.more.get("on")) != (FIND.name, engine.NAME):
            continue
        floor = ASYNC_FLOORS[ours.clients] if its.who == ASYNC else THREADS_FLOOR
        what = f"{ours.work} from {ours.clients} clients"
        cost = its.more["cpu ms"] / ours.more["cpu ms"]
        found.append(promises.at_least(f"{what}, a CPU second, over {its.who}", cost, floor))
        found.append(promises.at_least(f"{what}, over {its.who}", ours.req_s / its.req_s, 1.0))
        if ours.p99_ms and its.p99_ms:
            slowest = ours.p99_ms / its.p99_ms
            found.append(promises.at_most(f"{what}, p99, over {its.who}", slowest, 1.0))
    return found


def lacking(bench: Bench) -> None:
    """Ask for products that lack a field, both ways."""
    ours, *_ = lineup.documents(bench.database_url, bench.mongo.uri)
    with bench.started([ours]) as servers:
        server = servers[ours.who]
        print(f"storing {products.COUNT:,} products", file=sys.stderr, flush=True)
        products.fill(server)
        works = (products.MISSING, products.HOLDS_DEFAULT)
        if bench.is_wrong(products.wrong(*(server.get(work.path) for work in works))):
            return
        entries = [(ours.who, server, work) for work in works]
        # One client: one answer reads thousands of products.
        compare(bench.found, entries, 1, bench.rounds, on=bench.mongo.name)


PARTS: dict[str, Callable[[Bench], None]] = {
    "agents": agents,
    "books": books,
    "states": states,
    "messages": messages,
    "products": lacking,
}


def run(found: report.Report, rounds: int, workers: int, parts: Sequence[str]) -> None:
    """Start the databases, and measure *parts*."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        postgres = stack.enter_context(temporary(MAX_CONNECTIONS))
        mongo = stack.enter_context(mongodb.lent(folder))
        bench = Bench(found, rounds, workers, postgres.url, mongo, folder)
        env = {"DATABASE_URL": postgres.url, "MONGODB_URI": mongo.uri, "AUTH": "off"}
        flask("db", "upgrade", "sample", env={**os.environ, **env})
        settle(postgres.superuser_url)
        measure_all(bench, parts)


def measure_all(bench: Bench, parts: Sequence[str]) -> None:
    """Measure *parts*; one that fails makes the run invalid, and does not end the others."""
    for part in parts:
        try:
            PARTS[part](bench)
        except FAILURES as error:
            bench.found.invalid(f"{part}: {error}")


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.api", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"hey's are of {ROUND_S} s each")
    parser.add_argument("--workers", type=int, default=1, help="of who has states and messages")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS], help="these parts")
    args = parser.parse_args()
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    allow_files()
    found = report.Report("api" if args.workers == 1 else f"api-{args.workers}-workers")
    try:
        run(found, max(1, args.rounds), max(1, args.workers), args.only)
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    print(f"\n{report.ratio_table(report.ratios(found.rows))}")
    print(NOTES)
    return promises.status(verdicts(found.rows)) or status


if __name__ == "__main__":
    raise SystemExit(main())
