"""
Keep asking our service, and look whether it fails or grows.

1. From 200 connections 100,000 requests for a book from Postgres, 20,000 for a page of a hundred,
   and 100,000 for a state from MongoDB, each of a service of its own, as it runs in production but
   with one worker: of four each would have a quarter of the requests that its memory can grow by.
   The state is asked of FastAPI too, with pymongo's async client and with threads.
2. After each fifth the worker's resident memory is read. The first of these is what it needs; none
   of ours after it may be more than MAX_GROWTH_MB above.
3. A failed request makes the run invalid, and so does memory: it is a bound and not a speed.

    python -m bench.soak
"""

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import hey, lineup, mongodb, proc, report
from bench.contenders import flask
from bench.failures import FAILURES
from bench.servers import Gunicorn, Server, ServerError, Uvicorn, wait_until_quiet
from embedded.postgres import temporary

STEPS, CLIENTS = 5, 200
# Above REQUEST_TIMEOUT: a slow answer counts, and who gave up is the service and not hey.
PATIENCE_S = 60
MAX_GROWTH_MB = 2.0
ARGUMENTS = ("-c", "gunicorn.conf.py", "--workers", "1", "app.wsgi:app")


@dataclass(frozen=True)
class Work:
    """What is asked for again and again, *step* times before memory is read."""

    name: str
    path: str
    step: int = 20_000


STATE = Work("mongodb", f"/states/{17:024x}")
WORKS = (Work("postgres", "/books/17"), Work("page", "/books?limit=100", 4_000), STATE)


@dataclass(frozen=True)
class Verdict:
    """Whether memory kept its bound, and the sentence that says so."""

    kept: bool
    text: str


def memory(work: Work, curve_mb: Sequence[float]) -> Verdict:
    """Judge the memory after each step: the first is what is needed, the highest may be near it."""
    growth_mb = round(max(curve_mb) - curve_mb[0], 1)
    kept = growth_mb <= MAX_GROWTH_MB
    curve = " ".join(f"{each:.1f}" for each in curve_mb)
    where = "within" if kept else "ABOVE"
    return Verdict(
        kept,
        f"{work.name}: worker {curve} MB, at most {growth_mb:.1f} MB more than after the first "
        f"{work.step:,} requests, {where} {MAX_GROWTH_MB:.0f} MB",
    )


def soak(found: report.Report, work: Work, who: str, server: Server) -> list[float]:
    """Ask *server* for *work* step by step; return its memory after each, which is a row each."""
    worker = only_worker(server)
    curve_mb = []
    for done in range(work.step, STEPS * work.step + 1, work.step):
        print(f"{work.name}, {who}, {done:,} of {STEPS * work.step:,}", file=sys.stderr, flush=True)
        result = hey.run(server.url + work.path, work.step, CLIENTS, timeout_s=PATIENCE_S)
        wait_until_quiet(worker)
        if only_worker(server) != worker:
            raise ServerError(f"{work.name}: the worker was replaced before {done:,} requests")
        curve_mb.append(proc.rss_mb(worker))
        found.add(report.row(f"{work.name}-{done}", who, result, curve_mb[-1]))
        if result.answers != {"200": work.step}:
            found.invalid(f"{work.name} {who}, until {done:,} requests: answers {result.answers}")
    return curve_mb


def judge(found: report.Report, work: Work, curve_mb: Sequence[float]) -> str:
    """Judge our memory; return the sentence."""
    verdict = memory(work, curve_mb)
    if not verdict.kept:
        found.invalid(verdict.text)
    return verdict.text


def only_worker(server: Server) -> int:
    """Return the process id of the server's one worker, which uvicorn itself is."""
    if isinstance(server, Uvicorn) and server.process:
        return server.process.pid
    workers = proc.children(server.process.pid) if server.process else []
    if len(workers) != 1:
        raise ServerError(f"{len(workers)} workers instead of one: {server.log_text()[-2000:]}")
    return workers[0]


def run(found: report.Report) -> list[str]:
    """Start the databases, then a service for each work, and its peers; return the verdicts."""
    verdicts = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        postgres = stack.enter_context(temporary())
        mongo = stack.enter_context(mongodb.lent(folder))
        env = {"DATABASE_URL": postgres.url, "MONGODB_URI": mongo.uri}
        env |= {"AUTH": "off", "WEB_CONCURRENCY": "1"}
        flask("db", "upgrade", "sample", env={**os.environ, **env})
        for work in WORKS:
            log = folder / f"{work.name}.log"
            with Gunicorn(ARGUMENTS, ready="/readyz", env=env, log=log) as server:
                verdicts.append(judge(found, work, soak(found, work, report.OURS, server)))
        for peer in lineup.documents(postgres.url, mongo.uri):
            if peer.kind is Uvicorn:
                with peer.server(folder) as server:
                    soak(found, STATE, peer.who, server)
    return verdicts


def main() -> int:
    """Run the bench, print and write what came of it."""
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = report.Report("soak")
    verdicts: list[str] = []
    try:
        verdicts = run(found)
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    print("\nrss MB is the worker's, after so many requests")
    print("\n".join(verdicts))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
