"""
The article's experiment: many clients at once, each with one query to Postgres.

1. A script that connects for every request: on gunicorn's gevent worker, without and with
   psycopg2's hook; on gthread behind a pgbouncer; and, unmodified, on our worker with
   ``GREENLINE_POOL=1``. Beside it, the same with SQLAlchemy's pool, and our service. All have one
   Postgres with ``max_connections`` 100, and as many of its connections as our budget.
2. Every figure is of a server of its own, on a Postgres without other connections. It is warm: each
   client has asked once, for a query that sleeps WARM_UP_S where the measured one sleeps too. Ours
   is measured cold as well: it has imported the script, and has no connection. Each client asks for
   a short query four times; that is repeated in rounds, of which the middle one counts.
3. What has no answer after CUT_S seconds is cut and counts as an error: without the hook a
   thousand clients would take a thousand seconds.
4. The others' errors are what the experiment shows; one of ours makes the run invalid. The exit
   status is 1 when it is, or when a promise is missed.

    python -m bench.article [--works 'one,actors'] [--clients 100,1000]
"""

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg2

from bench import budget, hey, promises, report
from bench.backends import Backends, Highest
from bench.contenders import (
    PGBOUNCER,
    PSYCOGREEN,
    SERVICE,
    Contender,
    Work,
    contenders,
    flask,
)
from bench.failures import FAILURES
from bench.servers import Gunicorn, ServerError
from embedded.mongo import Mongo
from embedded.pgbouncer import Pgbouncer
from embedded.postgres import Postgres, temporary

MAX_CONNECTIONS = 100
# gunicorn's timeout and our REQUEST_TIMEOUT: no answer is expected later than that.
CUT_S = 30
# Seconds of sleep that everyone is asked for before the measurement: imports and caches are done,
# and a pool has as many connections as there are clients, within its size.
WARM_UP_S = 0.5
ACTORS = 200
SHORT = ("--worker-connections", "100")
WORKS = (
    Work("sleep-1s", 1, workers=1, clients=(10, 50, 75, 100, 101, 125, 1000)),
    Work("sleep-1s-cold", 1, workers=1, clients=(100, 1000), is_warm=False),
    Work("one", 0, 4, (1000,), SHORT, repeats=3, asked=4, path="/one"),
    Work("actors", 0, 4, (1000,), SHORT, repeats=3, asked=4, path="/actors", body=b"200 rows\n"),
)
OURS = (report.OURS, SERVICE)
ROUNDS_FACTOR = 1.1
# Answers a second of the unmodified script on our worker, over those of another.
FLOORS = {("one", PSYCOGREEN): 3.0, ("actors", PSYCOGREEN): 2.5}
FLOORS |= {(work, PGBOUNCER): 1.2 for work in ("one", "actors")}
# On two cores 10 leaves 0.13 ms for the database: without a query it is 13 times psycogreen's.
AIMS = {("one", PSYCOGREEN): 10.0, ("actors", PSYCOGREEN): 4.0}


class Experiment:
    """The runs on one Postgres and one MongoDB; figures and problems go into *found*."""

    def __init__(
        self, found: report.Report, postgres: Postgres, mongo: Mongo, backends: Backends, log: Path
    ) -> None:
        self.found = found
        self._postgres = postgres
        self._contenders = contenders(postgres.url, mongo.url)
        self._env = {**os.environ, **self._contenders[-1].env}
        self._backends = backends
        self._log = log

    def run(self, works: Sequence[Work], clients: Collection[int]) -> None:
        """Make the tables, then measure all of them."""
        flask("db", "upgrade", env=self._env)
        fill(self._postgres)
        for work in works:
            plan = budget.ask({**self._env, "WEB_CONCURRENCY": str(work.workers)})
            for many in [each for each in work.clients if not clients or each in clients]:
                self._compete(work, many, plan)

    def _compete(self, work: Work, clients: int, plan: budget.Budget) -> None:
        taking_part = [each for each in self._contenders if takes_part(each.who, work)]
        rows: dict[str, list[report.Row]] = {each.who: [] for each in taking_part}
        for contender in taking_part * work.repeats:
            what = f"{work.name} {contender.who} {clients} clients"
            print(what, file=sys.stderr, flush=True)
            try:
                row = self._measure(contender, work, clients, plan)
            except FAILURES as error:
                if contender.who in OURS:
                    self.found.invalid(f"{what}: {error}")
                else:  # without the hook it may answer no one for as long as all queries take
                    print(f"{what}: {error}", file=sys.stderr, flush=True)
                continue
            rows[contender.who].append(row)
            for problem in problems(row, work, plan.host):
                self.found.invalid(f"{what}: {problem}")
        middle = {who: report.middle(each) for who, each in rows.items() if each}
        for row in middle.values():
            self.found.add(row)
        self.found.verdicts += verdicts(work, middle, work.workers * plan.worker)

    def _measure(
        self, contender: Contender, work: Work, clients: int, plan: budget.Budget
    ) -> report.Row:
        """Have *clients* at once ask a new server."""
        wait_until_gone(self._backends)
        more, asked = {"BENCH_POOL_SIZE": str(plan.worker)}, work.asked * clients
        with ExitStack() as stack:
            if contender.who == PGBOUNCER:
                before = Pgbouncer(self._postgres, work.workers * plan.worker)
                more["DATABASE_URL"] = stack.enter_context(before).url
            server = stack.enter_context(contender.gunicorn(work, self._log, more))
            if work.is_warm:
                warm(server, contender, work, clients)
            highest = stack.enter_context(Highest(self._backends))
            url = server.url + contender.query(work, work.seconds)
            result = hey.run(url, asked, clients, timeout_s=CUT_S, keepalive=False)
            rss_mb = server.rss_mb()
        return report.row(work.name, contender.who, result, rss_mb, backends=highest.seen)


def takes_part(who: str, work: Work) -> bool:
    """Return whether *who* is asked for *work*."""
    if not work.is_warm:
        return who in OURS
    return work.is_sleep or who != SERVICE


def warm(server: Gunicorn, contender: Contender, work: Work, clients: int) -> None:
    """Have each of *clients* ask once; raise ServerError where the answer is wrong."""
    path = contender.query(work, WARM_UP_S)
    hey.run(server.url + path, clients, clients, timeout_s=CUT_S, keepalive=False)
    if contender.who != SERVICE:
        status, body = server.get(path)
        if (status, body) != (200, work.body):
            raise ServerError(f"answers {status} {body!r}")


def fill(postgres: Postgres) -> None:
    """Make the table of actors."""
    with closing(psycopg2.connect(postgres.url)) as conn, conn, conn.cursor() as cursor:
        cursor.execute(
            "create table actor (actor_id serial primary key, first_name text not null,"
            " last_name text not null, last_update timestamp not null default now());"
            "insert into actor (first_name, last_name)"
            " select 'PENELOPE' || n, 'GUINESS' || n from generate_series(1, %s) as n",
            (ACTORS,),
        )


def problems(row: report.Row, work: Work, max_backends: int) -> Iterator[str]:
    """Say what makes *row* not count, with *max_backends* connections in the budget."""
    # hey's figures are rounded to a tenth of a millisecond.
    if row.p50_ms is not None and row.p50_ms < work.seconds * 1000 - 1:
        yield f"answered in {row.p50_ms} ms, without having slept"
    if row.who not in OURS:
        return
    if row.answers != {"200": work.asked * row.clients}:
        yield f"answers {row.answers}"
    if row.more["backends"] > max_backends:
        yield f"{row.more['backends']} backends, the budget is {max_backends}"


def verdicts(
    work: Work, rows: dict[str, report.Row], connections: int
) -> Iterator[promises.Verdict]:
    """Judge our rows of *work*, over *connections* of all workers."""
    for who in OURS:
        if work.is_sleep and (row := rows.get(who)) is not None:
            rounds = math.ceil(row.clients / connections) * work.seconds
            what = f"{who} {work.name} {row.clients} clients, seconds"
            yield promises.at_most(what, row.seconds, ROUNDS_FACTOR * rounds)
    for (name, peer), floor in FLOORS.items():
        if name == work.name and {report.OURS, peer} <= rows.keys():
            ratio = rows[report.OURS].req_s / max(rows[peer].req_s, 0.1)
            yield promises.at_least(
                f"{name}, answers a second over {peer}", ratio, floor, AIMS.get((name, peer))
            )


def wait_until_gone(backends: Backends, limit_s: float = 15) -> None:
    """Wait until the last server's connections are gone: a backend outlives its client."""
    until = time.monotonic() + limit_s
    while not backends.gone():
        if time.monotonic() > until:
            raise ServerError("connections of the last server are still there")
        time.sleep(0.05)


def main() -> int:
    """Start the databases, run the experiment, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="bench.article", description="The article's experiment.")
    parser.add_argument("--works", default="", help="their names, with commas; default: all")
    parser.add_argument("--clients", default="", help="their numbers, with commas; default: all")
    options = parser.parse_args()
    works = [each for each in WORKS if not options.works or each.name in options.works.split(",")]
    clients = {int(each) for each in options.clients.split(",") if each}
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = report.Report("article")
    with tempfile.TemporaryDirectory(prefix="gl-") as name:
        folder = Path(name)
        try:
            with (
                temporary(MAX_CONNECTIONS) as postgres,
                Mongo(folder / "mongo", durable=False) as mongo,
                closing(Backends(postgres.superuser_url)) as backends,
            ):
                log = folder / "server.log"
                Experiment(found, postgres, mongo, backends, log).run(works, clients)
        except FAILURES as error:
            found.invalid(str(error))
    status = found.finish()
    print(f"\nerror: no answer within {CUT_S} s, or none at all")
    print(
        f"every client has asked once before, for {WARM_UP_S} s of sleep if any, unless it is cold"
    )
    return promises.status(found.verdicts) or status


if __name__ == "__main__":
    raise SystemExit(main())
