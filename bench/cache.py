"""
The service with a cache beside the service without, and what the cache promises.

The service and its database share a core, and the clients have the others (``bench/cores.py``): a
cache saves the work of both.

1. Reads: a book by its id and a page of 100, by Zipf's law, with one write in a hundred: of a book
   that is read as well, or of a task, which changes no page. The cache has so much memory that
   99 % are hits, or 90 %. The rounds are interleaved; the middle of their ratios is judged.
   Beside them, without a promise: one page that each write makes out of date.
2. A stampede: a thousand clients ask at once for a page that takes 0.2 s in Postgres, of our cache,
   of one that keeps what a request has loaded, and of none.
3. Writes that other workers see: how long after the answer to a write the other worker reads it.
4. Writers: fifty clients write at once where writes are announced and where not; beside them,
   without a promise, fifty sessions of pgbench that update a row at a time.
5. What a hit adds to a request, and the memory of a full cache.

    python -m bench.cache [--rounds 5]
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2

from bench import cache_latency, cores, databases, load, products, promises, report
from bench.contenders import flask
from bench.http_lineup import GREEN
from bench.lineup import OURS_QUIET, POOL_SIZE
from bench.postgres import settle
from bench.report import OURS
from bench.rounds import interleaved, refused
from bench.servers import ROOT, Gunicorn, Server, ServerError, free_port
from embedded import cluster
from embedded.account import Account
from embedded.postgres import Postgres

SERVERS_CORE, OTHER_CORES = cores.divided()
WITHOUT = "without a cache"
BOOKS, OPERATIONS, ROUNDS = 1_000, 4_000, 5
MORE = 4  # times the requests of a round with a cache: the rounds of both take seconds
CLIENTS = (10, 100)
ORDERS = ("id", "title", "published", "created_at", "updated_at")
LARGE_BYTES, WRITE_EVERY = 64_000_000, 100
STAMPEDE, WRITERS, WRITERS_S = 1_000, 50, 5.0
WRITERS_TURNS = 20  # a round
ANNOUNCED, SILENT = "announced", "silent"
# Over the same service without a cache.
FLOORS = {"book 99 %": 2.5, "book 90 %": 1.8, "page 99 %": 8.0, "page 90 %": 4.0}
# A hit: 15 us where a request of a plain view takes 10, without a socket.
MAX_HIT, MAX_WRITERS_COST, MAX_STAMPEDE, MAX_MEMORY = 1.5, 0.1, 3.0, 1.1
BODY = json.dumps({"title": "Another title"})
NOTES = f"""
one worker of each, pools of {POOL_SIZE}; it and Postgres have one core, the clients the others
one request in {WRITE_EVERY} is a PATCH: of a book; beside pages, but the changed one, of a task
a page has 91 to 100 books; changed page: one, which each write makes out of date
hits: reads that cause no load, by the worker's own count; those that wait for one are among them"""


@dataclass(frozen=True)
class Work:
    """*paths* by Zipf's law, what the writes change (None: what would be read), and the hits."""

    name: str
    paths: Sequence[str]
    changed: Sequence[str] | None
    hits: float | None  # None: whatever they are

    def asked(self) -> list[tuple[bool, str]]:
        """Return the path of each request, and whether it is a write."""
        chance = random.Random(1)  # noqa: S311
        weights = [1 / rank for rank in range(1, len(self.paths) + 1)]
        drawn = chance.choices(self.paths, weights, k=OPERATIONS)
        found = []
        for number, path in enumerate(drawn, 1):
            is_write = number % WRITE_EVERY == 0
            if is_write and self.changed is not None:
                path = chance.choice(self.changed)
            found.append((is_write, path))
        return found

    def urls(self, base: str) -> list[str]:
        """Return what is asked, in its order."""
        return [f"{'PATCH ' * is_write}{base}{path}" for is_write, path in self.asked()]

    def room(self) -> int:
        """Return how many values a cache holds that keeps the last used and has so many hits."""
        low, high = 1, len(self.paths)
        while low < high:
            size = (low + high) // 2
            low, high = (size + 1, high) if self._hits(size) < (self.hits or 0) else (low, size)
        return low

    def _hits(self, size: int) -> float:
        """Return the share of hits in a second turn."""
        kept: OrderedDict[str, None] = OrderedDict()
        asked, hits = self.asked(), 0
        for turn in range(2):
            for is_write, path in asked:
                hits += turn and not is_write and path in kept
                kept.pop(path, None)
                if not is_write:
                    kept[path] = None
                if len(kept) > size:
                    kept.popitem(last=False)
        return hits / (OPERATIONS * (1 - 1 / WRITE_EVERY))


@contextmanager
def started(server: Server) -> Iterator[Server]:
    """Run *server* on the servers' core."""
    with ExitStack() as stack:
        with cores.on(SERVERS_CORE):
            stack.enter_context(server)
        yield server


@contextmanager
def service(
    env: dict[str, str], folder: Path, max_bytes: int, workers: int = 1
) -> Iterator[Server]:
    """Run the service with a cache of *max_bytes*, 0 for none."""
    more = {
        "GREENLINE_CACHE_BYTES": str(max_bytes),
        "WEB_CONCURRENCY": str(workers),
        "GREENLINE_OPS_BIND": f"127.0.0.1:{free_port()}",
    }
    arguments = [*OURS_QUIET, *GREEN, "--workers", str(workers), "app.wsgi:app"]
    log = folder / f"{max_bytes}.log"
    given = {**env, **more}
    with started(Gunicorn(arguments, ready="/books/1", env=given, log=log)) as server:
        yield server


def counts(server: Server) -> dict[str, float]:
    """Return the counts and the size of the server's cache of Postgres."""
    address = f"http://{server.env['GREENLINE_OPS_BIND']}/metrics"
    with urllib.request.urlopen(address, timeout=10) as answer:  # nosec B310
        text = answer.read().decode()
    rows = re.findall(r'^greenline_cache_(\w+)\{[^}]*cache="postgres"[^}]*\} (\S+)$', text, re.M)
    return {name: float(value) for name, value in rows}


def reads(found: report.Report, env: dict[str, str], folder: Path, rounds: int) -> None:
    """Let both services compete at each work."""
    books = [f"/books/{number}" for number in range(1, BOOKS + 1)]
    tasks = [f"/tasks/{number}" for number in range(1, 11)]
    pages = [
        f"/books?limit={limit}&order={sign}{order}"
        for limit in range(100, 90, -1)
        for order in ORDERS
        for sign in ("", "-")
    ]
    for work in (
        Work("book 99 %", books, None, 0.99),
        Work("book 90 %", books, None, 0.9),
        Work("page 99 %", pages, tasks, 0.99),
        Work("page 90 %", pages, tasks, 0.9),
        Work("changed page", pages[:1], books, None),
    ):
        max_bytes = LARGE_BYTES
        if work.hits is not None:
            with service(env, folder, LARGE_BYTES) as server:
                for path in work.paths:
                    server.get(path)
                full = counts(server)
            max_bytes = int((work.room() + 1) * full["bytes"] / full["values"])
        with service(env, folder, max_bytes) as cached, service(env, folder, 0) as uncached:
            for clients in CLIENTS:
                _compete(found, {OURS: cached, WITHOUT: uncached}, work, clients, rounds)


def _compete(
    found: report.Report, servers: dict[str, Server], work: Work, clients: int, rounds: int
) -> None:
    rows: dict[str, list[report.Row]] = {who: [] for who in servers}
    hits: list[float] = []
    print(f"{work.name}, {clients} connections", file=sys.stderr, flush=True)
    for server in servers.values():
        load.run(work.urls(server.url), OPERATIONS, clients, body=BODY)
    for _, (who, server) in interleaved(list(servers.items()), rounds):
        before = counts(server)
        asked = OPERATIONS * (MORE if who == OURS else 1)
        run = load.run(work.urls(server.url), asked, clients, body=BODY)
        result = load.together([run], clients)
        if problem := refused(result.answers):
            found.invalid(f"{work.name} {who} {clients} clients: {problem}")
            return
        more: dict[str, Any] = {}
        if before:
            grown = {name: value - before[name] for name, value in counts(server).items()}
            share = 1 - grown["loads_total"] / (asked * (1 - 1 / WRITE_EVERY))
            hits.append(share)
            more = {"hits": round(share, 3)}
        rows[who].append(report.row(work.name, who, result, server.rss_mb(), **more))
    for each in rows.values():
        found.add(report.middle(each))
    what = f"{work.name} from {clients} clients"
    ratio = report.paired(rows[OURS], rows[WITHOUT])
    if work.hits is None:
        print(f"{what}, over none: {ratio:.2f}", flush=True)
    else:
        found.verdicts.append(promises.at_least(f"{what}, over none", ratio, FLOORS[work.name]))
        # Many clients that wait for one load make these more.
        if abs(statistics.median(hits) - work.hits) > 0.05:
            found.invalid(f"{what}: {statistics.median(hits):.1%} hits, not {work.hits:.0%}")
    size = counts(servers[OURS])
    if size["bytes"] > size["bytes_max"]:
        found.invalid(f"{what}: {size['bytes']:.0f} bytes are kept, of {size['bytes_max']:.0f}")


def stampede(found: report.Report, env: dict[str, str], folder: Path) -> None:
    """Let a thousand clients ask for one page at once."""
    more = {**env, "POSTGRES_POOL_SIZE": str(POOL_SIZE)}
    arguments = ["-c", "bench/peers/gunicorn_plain.py", *GREEN, "bench.peers.caching:app"]
    gunicorn = Gunicorn(arguments, ready="/ready", env=more, log=folder / "stampede.log")
    with started(gunicorn) as server:
        began = time.monotonic()
        server.get("/plain/one")
        alone_s = time.monotonic() - began
        slowest: dict[str, float] = {}
        for who in ("cached", "naive", "plain"):
            loads = json.loads(server.get("/loads")[1]).get(who, 0)
            run = load.run([f"{server.url}/{who}/page"], STAMPEDE, STAMPEDE)
            loads = json.loads(server.get("/loads")[1])[who] - loads
            result = load.together([run], STAMPEDE)
            if problem := refused(result.answers):
                found.invalid(f"stampede {who}: {problem}")
            slowest[who] = max(each.took_s for each in run.answers)
            name = {"cached": OURS, "naive": "naive cache", "plain": WITHOUT}[who]
            found.add(report.row("stampede", name, result, queries=loads))
            if who == "cached":
                found.verdicts.append(promises.at_most("stampede, queries", loads, 1))
    ratio = slowest["cached"] / alone_s
    what = "stampede, the slowest answer over one uncached request alone"
    found.verdicts.append(promises.at_most(what, ratio, MAX_STAMPEDE))
    for who in ("naive", "plain"):
        ratio = slowest[who] / slowest["cached"]
        print(f"stampede, the slowest answer of {who} over ours: {ratio:.1f}", flush=True)


def latency(
    found: report.Report, env: dict[str, str], folder: Path, postgres: Postgres, mongo: str
) -> None:
    """Measure how soon another worker reads a write; Postgres is restarted meanwhile."""
    workers = cache_latency.WORKERS
    with_mongo = {**env, "MONGODB_URI": mongo}
    flask("db", "upgrade", env={**os.environ, **with_mongo})
    with service(with_mongo, folder, LARGE_BYTES, workers) as server:
        body = json.dumps({"items": [products.product(number) for number in range(50)]})
        _, _, answer = server.ask("POST", "/products/batch", products.JSON, body)
        made = [f"/products/{each['id']}" for each in json.loads(answer)["items"]]
        cache_latency.at_rest(found, server, "a product", made)
    # A link, because Postgres has another folder for its socket after a restart.
    link, sockets = folder / "sockets", Path(postgres.socket).parent
    link.symlink_to(sockets)

    def restart() -> None:
        postgres.stop()
        link.unlink()
        with cores.on(SERVERS_CORE):
            postgres.start()
        link.symlink_to(Path(postgres.socket).parent)

    url = env["DATABASE_URL"].replace(str(sockets), str(link))
    with service({**env, "DATABASE_URL": url}, folder, LARGE_BYTES, workers) as server:
        cache_latency.at_rest(found, server, "a book", cache_latency.BOOKS)
        cache_latency.interrupted(found, server, restart)


def writers(found: report.Report, folder: Path, rounds: int) -> None:
    """Let fifty clients write where writes are announced, and where not; the disk is waited for."""
    with ExitStack() as stack:
        with cores.on(SERVERS_CORE):
            postgres = stack.enter_context(Postgres(folder / "durable", 6 * WRITERS))
        env = {**_prepare(postgres), "POSTGRES_POOL_SIZE": str(WRITERS)}
        databases = {ANNOUNCED: postgres.url, SILENT: _silent_copy(postgres)}
        urls: dict[str, list[str]] = {}
        for who, url in databases.items():
            place = folder / who
            place.mkdir()
            server = service({**env, "DATABASE_URL": url}, place, LARGE_BYTES)
            base = stack.enter_context(server).url
            urls[who] = [f"PATCH {base}/books/{number}" for number in range(1, BOOKS + 1)]
            load.run(urls[who], 2 * BOOKS, WRITERS, body=BODY)
        spent: dict[str, list[float]] = {who: [] for who in databases}
        bare: dict[str, list[float]] = {who: [] for who in databases}
        # Short turns: the disk is a third slower in one second than in the next.
        for turn in range(WRITERS_TURNS * rounds):
            for who in sorted(databases, reverse=turn % 2 == 1):
                run = load.run(urls[who], BOOKS // 2, WRITERS, body=BODY)
                if problem := refused(load.together([run], WRITERS).answers):
                    found.invalid(f"writers: {problem}")
                spent[who].append(len(run.answers) / run.seconds)
        for _, who in interleaved(list(databases), rounds):
            bare[who].append(_pgbench(databases[who], folder / "write.sql"))
    for name, figures in (("clients of the service", spent), ("sessions of pgbench", bare)):
        middle = {who: round(statistics.median(of)) for who, of in figures.items()}
        print(f"writes a second of {WRITERS} {name}: {middle}", flush=True)
    cost = statistics.median(
        1 - a / b for a, b in zip(spent[ANNOUNCED], spent[SILENT], strict=True)
    )
    what = f"what announcements cost {WRITERS} clients that write, of their writes"
    found.verdicts.append(promises.at_most(what, cost, MAX_WRITERS_COST))


def _silent_copy(postgres: Postgres) -> str:
    """Return the URL of a copy of the database in which nothing is announced, and nothing read."""
    with closing(psycopg2.connect(postgres.superuser_url, dbname="postgres")) as conn:
        conn.autocommit = True
        with conn.cursor() as cursor:
            cursor.execute(f"create database {SILENT} template greenline owner greenline")
    silent = psycopg2.connect(postgres.superuser_url, dbname=SILENT)
    with closing(silent), silent, silent.cursor() as cursor:
        cursor.execute("select announce_writes(false); drop table greenline_announcements")
    return postgres.url.replace("@/greenline?", f"@/{SILENT}?")


def _pgbench(url: str, script: Path) -> float:
    """Return the commits a second of sessions that do nothing but update a row at a time."""
    script.write_text(
        f"\\set id random(1, {BOOKS})\n"
        "update books set title = 'Title ' || :id, version = version + 1 where id = :id;\n"
    )
    program = cluster.binaries(Account(os.geteuid(), os.getegid())) / "pgbench"
    command = [str(program), "--no-vacuum", "--client", str(WRITERS)]
    command += ["--jobs", "2", "--time", f"{WRITERS_S:.0f}", "--file", str(script)]
    done = subprocess.run([*command, url], capture_output=True, text=True, timeout=60, check=False)
    rate = re.search(r"^tps = ([\d.]+) ", done.stdout, re.M)
    if done.returncode or rate is None:
        raise ServerError(f"pgbench: {done.stderr.strip()[-300:]}")
    return float(rate[1])


def _prepare(postgres: Postgres) -> dict[str, str]:
    """Make the sample in *postgres*; return the settings of a service on it."""
    env = {"DATABASE_URL": postgres.url, "MONGODB_URI": "off", "AUTH": "off"}
    env["POSTGRES_POOL_SIZE"] = str(POOL_SIZE)
    announcing = {"GREENLINE_CACHE_BYTES": str(LARGE_BYTES)}
    flask("db", "upgrade", "sample", env={**os.environ, **env, **announcing})
    settle(postgres.superuser_url)
    return env


def hit(found: report.Report) -> None:
    """Measure a hit in a process of its own, which is patched as a worker."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.cache_hit"], cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ServerError(f"bench.cache_hit: {done.stderr.strip()[-300:]}")
    print(done.stdout, end="", flush=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    for what in ("a hit of the service", "a hit of a view"):
        ratio = figures[what] / figures["a request of a plain view"]
        found.verdicts.append(promises.at_most(f"{what}, over a plain view", ratio, MAX_HIT))
    what = "memory of a full cache over its bound"
    found.verdicts.append(promises.at_most(what, figures[what], MAX_MEMORY))


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    rounds = max(1, args.rounds)

    def measure(
        found: report.Report, postgres: Postgres, mongo: str, folder: Path
    ) -> list[promises.Verdict]:
        # MongoDB is off for books: half of the memory would be for its products.
        env = _prepare(postgres)
        with cores.on(OTHER_CORES):
            reads(found, env, folder, rounds)
            stampede(found, env, folder)
            writers(found, folder, rounds)
            hit(found)
            latency(found, env, folder, postgres, mongo)  # last: it restarts Postgres
        return found.verdicts

    with cores.on(SERVERS_CORE):
        return databases.run("cache", 200, measure, NOTES)


if __name__ == "__main__":
    raise SystemExit(main())
