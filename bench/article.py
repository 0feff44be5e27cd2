"""
The article's experiment: many clients at once, each with one query that sleeps in Postgres.

1. A script that connects for every request, without and with psycopg2's hook, and our service,
   one after the other on one Postgres with ``max_connections`` 100.
2. Every figure is of a server of its own, warmed by one short query from each client, on a
   Postgres without other connections.
3. What has no answer after CUT_S seconds is cut and counts as an error: without the hook a
   thousand clients would take a thousand seconds.
4. The scripts' errors are what the experiment shows; one of ours makes the run invalid.

    python -m bench.article
"""

import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from bench import budget, hey, report
from bench.backends import Backends, Highest
from bench.contenders import PSYCOGREEN, Contender, Work, contenders, flask
from bench.failures import FAILURES
from bench.servers import ServerError
from embedded.mongo import Mongo
from embedded.postgres import temporary

MAX_CONNECTIONS = 100
# gunicorn's timeout and our REQUEST_TIMEOUT: no answer is expected later than that.
CUT_S = 30
# What everyone is asked for before the measurement: imports, lazy connects and caches are done.
WARM_UP_S = 0
WORKS = (
    Work("sleep-1s", 1, workers=1, clients=(10, 50, 75, 100, 101, 1000)),
    Work("short-query", 0, 4, (1000,), ("--worker-connections", "100"), repeats=3),
)


class Experiment:
    """The runs on one Postgres and one MongoDB; figures and problems go into *found*."""

    def __init__(
        self, found: report.Report, urls: tuple[str, str], backends: Backends, folder: Path
    ) -> None:
        self.found = found
        self.verdicts: list[str] = []
        # What the script with the hook needs beyond the sleep: Postgres forks a backend for each.
        self._connecting_s = 0.0
        self._contenders = contenders(*urls)
        self._env = {**os.environ, **self._contenders[-1].env}
        self._backends = backends
        self._log = folder / "server.log"

    def run(self) -> None:
        """Apply the schema for ours, then measure all of them."""
        flask("db", "upgrade", env=self._env)
        for work in WORKS:
            plan = budget.ask({**self._env, "WEB_CONCURRENCY": str(work.workers)})
            for clients in work.clients:
                for contender in self._contenders:
                    self._compete(contender, work, clients, plan)

    def _compete(self, contender: Contender, work: Work, clients: int, plan: budget.Budget) -> None:
        what = f"{work.name} {contender.who} {clients} clients"
        print(what, file=sys.stderr, flush=True)
        rows = []
        try:
            for _ in range(work.repeats):
                row = self._measure(contender, work, clients)
                rows.append(row)
                for problem in problems(row, work, plan.host):
                    self.found.invalid(f"{what}: {problem}")
        except FAILURES as error:
            self.found.invalid(f"{what}: {error}")
        if rows:
            row = report.middle(rows)
            self.found.add(row)
            if row.who == PSYCOGREEN and row.answers == {"200": row.clients}:
                self._connecting_s = row.seconds - work.seconds
            if row.who == report.OURS and work.seconds:
                connections = work.workers * plan.worker
                self.verdicts.append(verdict(row, connections, self._connecting_s))

    def _measure(self, contender: Contender, work: Work, clients: int) -> report.Row:
        """Send one request from each of *clients* at once to a server that is warm."""
        wait_until_gone(self._backends)
        with (
            contender.gunicorn(work, self._log) as server,
            Highest(self._backends) as highest,
        ):
            for seconds in (WARM_UP_S, work.seconds):
                url = server.url + contender.query(seconds)
                result = hey.run(url, clients, clients, timeout_s=CUT_S, keepalive=False)
            rss_mb = server.rss_mb()
        return report.row(work.name, contender.who, result, rss_mb, backends=highest.seen)


def problems(row: report.Row, work: Work, max_backends: int) -> Iterator[str]:
    """Say what makes *row* not count, with *max_backends* connections in the budget."""
    # hey's figures are rounded to a tenth of a millisecond.
    if row.p50_ms is not None and row.p50_ms < work.seconds * 1000 - 1:
        yield f"answered in {row.p50_ms} ms, without having slept"
    if row.who != report.OURS:
        return
    if row.answers != {"200": row.clients}:
        yield f"answers {row.answers}"
    if row.more["backends"] > max_backends:
        yield f"{row.more['backends']} backends, the budget is {max_backends}"


def verdict(row: report.Row, connections: int, connecting_s: float) -> str:
    """Say whether *row* took no longer than 1.1 times its rounds and the making of connections."""
    limit_s = 1.1 * (math.ceil(row.clients / connections) + connecting_s)
    kept = "within" if row.seconds <= limit_s else "ABOVE"
    return (
        f"{row.who} {row.work} {row.clients} clients: {row.seconds:.2f} s, {kept} "
        f"1.1 x (ceil({row.clients} / {connections}) + {connecting_s:.2f}) = {limit_s:.2f} s"
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
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = report.Report("article")
    experiment = None
    with tempfile.TemporaryDirectory(prefix="gl-") as name:
        folder = Path(name)
        try:
            with (
                temporary(MAX_CONNECTIONS) as postgres,
                Mongo(folder / "mongo", durable=False) as mongo,
                closing(Backends(postgres.superuser_url)) as backends,
            ):
                urls = (postgres.url, mongo.url)
                experiment = Experiment(found, urls, backends, folder)
                experiment.run()
        except FAILURES as error:
            found.invalid(str(error))
    status = found.finish()
    print(f"\nerror: no answer within {CUT_S} s, or none at all")
    print("before each measurement every client asks once for a query that does not sleep")
    print("\n".join(experiment.verdicts if experiment else ()))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
