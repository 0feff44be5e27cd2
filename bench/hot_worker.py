"""
One worker with all the work and three idle ones: slots that the host shares, and an even split.

1. The work is a query that sleeps: connections bound it, not the processor. CLIENTS clients keep
   their connections, and the kernel tells which are at the worker that is to be hot; the others
   hang up.
2. The even split is the same service with POSTGRES_POOL_SIZE at an even share of the budget.
3. Rounds are interleaved, each on a service of its own: its pool grows in the first LEAD_S
   seconds, which do not count. The promise is judged by the middle of the rounds' ratios.

    python -m bench.hot_worker [--rounds 3]
"""

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic

from bench import budget, databases, proc, promises, report, sockets
from bench.backends import Backends, Highest
from bench.clients import Asked, Client
from bench.contenders import flask
from bench.rounds import interleaved
from bench.servers import Gunicorn, ServerError
from bench.vegeta import split_by_status
from embedded.postgres import Postgres

WORKERS, CLIENTS, MAX_CONNECTIONS = 4, 200, 100
SLEEP_S, LEAD_S, SECONDS, ROUNDS = 0.25, 2.0, 4.0, 3
MIN_RATIO = 3.5
SHARED, EVEN = report.OURS, "even split"
# Who has come to the hot worker idles until all have.
KEPT = ("--keep-alive", "60")
ARGUMENTS = ("-c", "gunicorn.conf.py", "--workers", str(WORKERS), *KEPT, "app.wsgi:app")
TRIES = 50  # to have enough clients at one worker
NOTES = f"""
{CLIENTS} clients, all at one of {WORKERS} workers, ask again and again for a sleep of {SLEEP_S:g} s
"pool": the connections that a worker's pool may reach; "backends": the highest count at the server
GREENLINE_SURGE_HOSTS=0: one host has the whole server; the default keeps half for one host more"""


class HotWorker:
    """The rounds on one Postgres; rows go into *found*."""

    def __init__(
        self, found: report.Report, env: Mapping[str, str], backends: Backends, folder: Path
    ) -> None:
        self._found = found
        self._backends = backends
        self._log = folder / "server.log"
        self._env = {SHARED: env}
        self.shared = budget.ask({**os.environ, **env})
        self._env[EVEN] = {**env, "POSTGRES_POOL_SIZE": str(self.shared.worker)}
        self.even = budget.ask({**os.environ, **self._env[EVEN]})

    def run(self, rounds: int) -> list[float]:
        """Measure both in turns; return the ratio of each round."""
        rows: dict[str, list[report.Row]] = {SHARED: [], EVEN: []}
        for round_, who in interleaved(list(rows), rounds):
            print(f"round {round_ + 1}, {who}", file=sys.stderr, flush=True)
            row = self._measure(who)
            rows[who].append(row)
            for problem in problems(row, self._pool_size(who)):
                self._found.invalid(f"{who}, round {round_ + 1}: {problem}")
        for each in rows.values():
            self._found.add(report.middle(each))
        return ratios(rows[SHARED], rows[EVEN])

    def _pool_size(self, who: str) -> int:
        return self.shared.max_pool_size if who == SHARED else self.even.max_pool_size

    def _measure(self, who: str) -> report.Row:
        env = self._env[who]
        with Gunicorn(ARGUMENTS, ready="/readyz", env=env, log=self._log) as server:
            assert server.process is not None
            with Highest(self._backends) as highest:
                asked = asyncio.run(keep_one_busy(server.process.pid, server.port))
            rss_mb = server.rss_mb()
        result = split_by_status(asked, CLIENTS, SECONDS)
        more = {"pool": self._pool_size(who), "backends": highest.seen}
        return report.row(f"sleep {SLEEP_S:g} s", who, result, rss_mb, **more)


async def keep_one_busy(arbiter: int, port: int) -> list[Asked]:
    """Have one worker of *arbiter* at *port* asked by all clients; return what ended in time."""
    clients = await gather_at_one(arbiter, port)
    asked: list[Asked] = []
    begin_s = monotonic() + LEAD_S
    end_s = begin_s + SECONDS

    async def go_on(client: Client) -> None:
        while monotonic() < end_s:
            asked.append(await client.ask(f"/diagnostics/sleep?seconds={SLEEP_S}"))

    await asyncio.gather(*map(go_on, clients))
    busy = [pid for pid in proc.children(arbiter) if sockets.client_ports(pid, port)]
    for client in clients:
        client.close()
    if len(busy) != 1:
        raise ServerError(f"{len(busy)} workers had clients instead of one")
    return [one for one in asked if begin_s <= one.ended_s < end_s]


async def gather_at_one(arbiter: int, port: int) -> list[Client]:
    """Return CLIENTS clients whose connections are all at one worker of *arbiter*."""
    hot = 0
    kept: list[Client] = []
    for _ in range(TRIES):
        some = [Client(port) for _ in range(CLIENTS)]
        await asyncio.gather(*(client.ask("/healthz") for client in some))
        at = {pid: sockets.client_ports(pid, port) for pid in proc.children(arbiter)}
        hot = hot or max(at, key=lambda pid: len(at[pid]))
        for client in some:
            if client.port in at[hot] and len(kept) < CLIENTS:
                kept.append(client)
            else:
                client.close()
        if len(kept) == CLIENTS:
            return kept
    raise ServerError(f"{len(kept)} of {CLIENTS} clients came to one worker")


def ratios(shared: Sequence[report.Row], even: Sequence[report.Row]) -> list[float]:
    """Return how many times as fast the hot worker was, round by round."""
    pairs = zip(shared, even, strict=True)
    return [one.req_s / other.req_s if other.req_s else 0.0 for one, other in pairs]


def problems(row: report.Row, pool_size: int) -> list[str]:
    """Say what makes *row* not count, with *pool_size* connections in the hot worker's pool."""
    found = []
    if set(row.answers) != {"200"}:
        found.append(f"answers {row.answers}")
    limit = pool_size + WORKERS + (WORKERS - 1)  # the control connections, and the idle ones' own
    if row.more["backends"] > limit:
        found.append(f"{row.more['backends']} backends, at most {limit} were to be")
    if row.p50_ms is not None and row.p50_ms < SLEEP_S * 1000:
        found.append(f"answered in {row.p50_ms} ms, without having slept")
    return found


def measure(
    found: report.Report, postgres: Postgres, mongo_url: str, folder: Path, rounds: int
) -> list[promises.Verdict]:
    """Run all rounds, and judge."""
    env = {
        "DATABASE_URL": postgres.url,
        "MONGODB_URI": mongo_url,
        "AUTH": "off",
        "WEB_CONCURRENCY": str(WORKERS),
        "GREENLINE_DIAGNOSTICS": "1",
        "GREENLINE_SURGE_HOSTS": "0",
    }
    flask("db", "upgrade", env={**os.environ, **env})
    with closing(Backends(postgres.superuser_url)) as backends:
        each = HotWorker(found, env, backends, folder).run(rounds)
    ratios = " ".join(f"{ratio:.2f}" for ratio in each)
    what = f"the hot worker's req/s over an even split's, middle of {ratios}"
    return [promises.at_least(what, statistics.median(each), MIN_RATIO)]


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.hot_worker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of both")
    rounds = max(1, parser.parse_args().rounds)
    return databases.run("hot_worker", MAX_CONNECTIONS, partial(measure, rounds=rounds), NOTES)


if __name__ == "__main__":
    raise SystemExit(main())
