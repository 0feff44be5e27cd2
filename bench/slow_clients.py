"""
The p99 of those who are not slow, while SLOW clients are: behind nginx, and straight at a worker.

1. vegeta asks for a book at RATE a second, an open loop: SECONDS without slow clients and SECONDS
   with them, in turns. Half of these upload a kilobyte a second, half of them download as slowly.
2. nginx has the file of ``deploy/``. Its sockets and ours hold little of an answer, as a slow
   network's do; the loopback's would take megabytes, and no server would wait for a slow client.
3. Each has one worker. Of the peers the work is a bare function's: what starves them is no work.
4. The promise is judged by the middle of the rounds' ratios.

    python -m bench.slow_clients [--rounds 5]
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import databases, promises, report, vegeta
from bench.contenders import flask
from bench.rounds import interleaved
from bench.servers import Gunicorn, Server, ServerError, free_port, wait_until_quiet
from bench.trickle import Trickle
from embedded.nginx import Nginx
from embedded.postgres import Postgres

SLOW, RATE, SECONDS, LEAD_S, ROUNDS = 500, 100.0, 5.0, 1.0, 5
PATIENCE_S = 5.0
MAX_RATIO = 1.5
ALONE, MEANWHILE = "alone", f"with {SLOW} slow"
CONF = Path(__file__).resolve().parents[1] / "deploy/nginx.conf"
SMALL = ("-c", "bench/peers/gunicorn_small_buffers.py", "--workers", "1")
PLAIN = ("-c", "bench/peers/gunicorn_plain.py", "--workers", "1")
PEER = "bench.peers.reads_wsgi:app"
PEERS = {
    "gthread, 40 threads": ("--worker-class", "gthread", "--threads", "40"),
    "sync": ("--worker-class", "sync"),
}
STRAIGHT = "greenline, straight"
NOTES = f"""
{RATE:g} requests a second for a book, of a peer for a small answer
"error": no answer in {PATIENCE_S:g} s
half of the {SLOW} slow clients upload, half download, a kilobyte a second each
"x": the p99 over that without slow clients, middle of the rounds"""


@dataclass(frozen=True)
class Way:
    """Where all clients of a server come: its own *port*, or that of the nginx before it."""

    server: Server
    port: int


@contextmanager
def nginx(upstream: str, folder: Path) -> Iterator[int]:
    """Run an nginx before *upstream*, a unix socket or an address; return its port."""
    port = free_port()
    server = "server unix:/run/greenline/http.sock max_fails=0;"
    text = CONF.read_text()
    for old, new in {
        server: f"server {upstream} max_fails=0;",
        "listen 80 backlog=2048;": f"listen 127.0.0.1:{port} backlog=2048 sndbuf=16k;",
        "pid /run/nginx.pid;": "pid {folder}/pid;",
        "/var/log/nginx/": "{folder}/",
        "worker_rlimit_nofile 65536;": "",
        "worker_connections 16384;": "worker_connections 4096;",
    }.items():
        if old not in text:
            raise ServerError(f"nginx.conf has no {old}")
        text = text.replace(old, new)
    running = Nginx(text)
    running.start(port)
    try:
        yield port
    finally:
        running.stop()


@contextmanager
def ways(env: dict[str, str], folder: Path) -> Iterator[dict[str, Way]]:
    """Start everybody."""
    with ExitStack() as stack:
        path = folder / "http.sock"
        arguments = (*SMALL, "--bind", f"unix:{path}", "app.wsgi:app")
        ours = Gunicorn(arguments, ready="/readyz", env=env, log=folder / "ours.log")
        stack.enter_context(ours)
        folder.chmod(0o711)  # nginx's workers are somebody else's
        found = {
            "greenline, nginx, unix": Way(ours, stack.enter_context(nginx(f"unix:{path}", folder))),
            "greenline, nginx, TCP": Way(
                ours, stack.enter_context(nginx(f"127.0.0.1:{ours.port}", folder))
            ),
            STRAIGHT: Way(ours, ours.port),
        }
        for who, kind in PEERS.items():
            log = folder / f"{kind[1]}.log"
            peer = Gunicorn((*PLAIN, *kind, PEER), ready="/", env={}, log=log)
            stack.enter_context(peer)
            found[who] = Way(peer, peer.port)
        yield found


class SlowClients:
    """The rounds; rows go into *found*."""

    def __init__(self, found: report.Report, ways: dict[str, Way]) -> None:
        self._found = found
        self._ways = ways

    def run(self, rounds: int) -> list[promises.Verdict]:
        """Measure all in turns, and judge ours."""
        rows: dict[str, list[tuple[report.Row, report.Row]]] = {who: [] for who in self._ways}
        for round_, who in interleaved(list(self._ways), rounds):
            print(f"round {round_ + 1}, {who}", file=sys.stderr, flush=True)
            way = self._ways[who]
            alone = self._measure(who, way, ALONE)
            with Trickle(way.port, SLOW // 2, SLOW // 2) as slow:
                # Of a worker that starves not all ever begin.
                if who not in PEERS and not slow.is_ready():
                    raise ServerError(f"{who}: the slow clients did not begin")
                meanwhile = self._measure(who, way, MEANWHILE)
            if who not in PEERS:
                for row in (alone, meanwhile):
                    if set(row.answers) != {"200"}:
                        self._found.invalid(f"{who} {row.work}: answers {row.answers}")
                if lost := [what for what in slow.statuses if what != "upload 201"]:
                    self._found.invalid(f"{who}: of the slow {lost}")
            rows[who].append((alone, meanwhile))
            assert way.server.process is not None
            wait_until_quiet(way.server.process.pid)
        verdicts = []
        for who, pairs in rows.items():
            ratio = middle_ratio(pairs)
            for row in middle(pairs, ratio):
                self._found.add(row)
            if who not in PEERS:
                what = f"{who}: p99 with {SLOW} slow clients over that without"
                verdicts.append(promises.at_most(what, ratio or 0.0, MAX_RATIO))
        return verdicts

    def _measure(self, who: str, way: Way, work: str) -> report.Row:
        url = f"http://127.0.0.1:{way.port}/books/1"
        answers = vegeta.attack(url, RATE, SECONDS, lead_s=LEAD_S, timeout_s=PATIENCE_S)
        result = vegeta.split_by_status(answers, 0, SECONDS)
        return report.row(work, who, result, way.server.rss_mb())


def middle_ratio(pairs: Sequence[tuple[report.Row, report.Row]]) -> float | None:
    """Return the middle of the rounds' ratios of p99, None where somebody got no answer."""
    ratios = [
        meanwhile.p99_ms / alone.p99_ms
        for alone, meanwhile in pairs
        if alone.p99_ms and meanwhile.p99_ms and set(meanwhile.answers) == {"200"}
    ]
    return round(statistics.median(ratios), 2) if len(ratios) == len(pairs) else None


def middle(pairs: Sequence[tuple[report.Row, report.Row]], ratio: float | None) -> list[report.Row]:
    """Return the round with the middle p99 of each work, and the ratio with the second."""
    chosen = []
    for rows in zip(*pairs, strict=True):
        ordered = sorted(rows, key=lambda row: row.p99_ms or float("inf"))
        chosen.append(ordered[(len(ordered) - 1) // 2])
    return [chosen[0], replace(chosen[1], more={"x": ratio})]


def measure(
    found: report.Report, postgres: Postgres, mongo_url: str, folder: Path, rounds: int
) -> list[promises.Verdict]:
    """Start all, run all rounds, and judge."""
    vegeta.find()  # built now and not in mid-run
    env = {"DATABASE_URL": postgres.url, "MONGODB_URI": mongo_url, "AUTH": "off"}
    flask("db", "upgrade", "sample", env={**os.environ, **env})
    with ways(env, folder) as found_ways:
        return SlowClients(found, found_ways).run(rounds)


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.slow_clients", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of all")
    rounds = max(1, parser.parse_args().rounds)
    return databases.run("slow_clients", 100, partial(measure, rounds=rounds), NOTES)


if __name__ == "__main__":
    raise SystemExit(main())
