"""
Postgres: our service beside four other ways to serve the same JSON, and two to store it.

1. All servers are started once, on one Postgres with the sample data, each with one worker and
   a pool of 20, and idle while another is measured.
2. Before anything is measured all must answer the same to the same questions.
3. hey and Postgres share the cores with the server: only the ratios mean something.

    python -m bench.postgres [--rounds 5]
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg2

from bench import promises, report, writes
from bench.contenders import flask
from bench.failures import FAILURES
from bench.lineup import POOL_SIZE, WITHOUT_PREPARE, lineup
from bench.rounds import ROUND_S, Work, compete, same_answers
from bench.writes import WRITES
from embedded.mongo import Mongo
from embedded.postgres import temporary

CLIENTS = (5, 10, 100)
ROUNDS = 5
# Five pools at once, and what our service holds beside its own.
MAX_CONNECTIONS = 200
WORKS = (
    Work("book-by-id", "/books/{id}"),
    Work("list-20", "/books?limit=20", part="items"),
    Work("list-100", "/books?limit=100", part="items"),
)
WRITE_CLIENTS = (10, 100)
ASYNCPG, SQLALCHEMY = "starlette-asyncpg", "fastapi-sqlalchemy"
# Our throughput over that of asyncpg, by the work and the clients.
BY_ID, BY_ID_OF_MANY, LIST, LARGE = 1.3, 1.2, 1.2, 1.0
FLOORS = {
    "book-by-id": {10: BY_ID, 100: BY_ID_OF_MANY},
    "list-20": {10: LIST, 100: LIST},
    "list-100": {10: LARGE, 100: LARGE},
    **{write.name: dict.fromkeys(WRITE_CLIENTS, LARGE) for write in WRITES},
}
MIN_CPU = 1.3  # of a list of 100: the processor time of asyncpg over ours
MIN_SQLALCHEMY = 4.0  # of writes
NOTES = f"""
of a page only the books are compared: ours alone says where it goes on, which costs it a little
each has one worker, a pool of {POOL_SIZE} connections and no access log; Postgres on a unix socket
hey, the servers and Postgres share this machine's cores: compare rows, not machines
a row is the middle one of its rounds; memory is that of all processes, gunicorn's arbiter too"""


def run(found: report.Report, rounds: int) -> None:
    """Start the databases and everybody, compare what they answer, and measure them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        postgres = stack.enter_context(temporary(MAX_CONNECTIONS))
        mongo = stack.enter_context(Mongo(folder / "mongo", durable=False))
        peers = lineup(postgres.url, mongo.url)
        flask("db", "upgrade", "sample", env={**os.environ, **peers[0].env})
        settle(postgres.superuser_url)
        servers = {}
        for peer in peers:
            print(f"starting {peer.who}", file=sys.stderr, flush=True)
            servers[peer.who] = stack.enter_context(peer.server(folder))
        for problem in same_answers(servers, WORKS):
            found.invalid(problem)
        if prepares(postgres.superuser_url, WITHOUT_PREPARE):
            found.invalid(f"{WITHOUT_PREPARE} executes prepared statements, and should not")
        if not prepares(postgres.superuser_url, report.OURS):
            print(f"{report.OURS} does not execute prepared statements", file=sys.stderr)
        if found.problems:
            return
        for work in WORKS:
            for clients in CLIENTS:
                compete(found, servers, work, clients, rounds)
        writers = {who: servers[who] for who in (report.OURS, ASYNCPG, SQLALCHEMY)}
        for problem in writes.same_answers(writers):
            found.invalid(problem)
        if found.problems:
            return
        for write in WRITES:
            for clients in WRITE_CLIENTS:
                compete(found, writers, write, clients, rounds)


def verdicts(rows: Sequence[report.Row]) -> list[promises.Verdict]:
    """Judge our throughput, and the processor time of a list of 100."""
    found = []
    for ours, its in report.pairs(rows):
        floor = FLOORS[ours.work].get(ours.clients)
        if its.who == SQLALCHEMY and ours.work in {write.name for write in WRITES}:
            floor = MIN_SQLALCHEMY
        elif its.who != ASYNCPG:
            continue
        what = f"{ours.work} from {ours.clients} clients, over {its.who}"
        if floor is not None:
            found.append(promises.at_least(what, ours.req_s / its.req_s, floor))
        if ours.work == "list-100":
            ratio = its.more["cpu_us"] / ours.more["cpu_us"]
            found.append(promises.at_least(f"{what}, its CPU over ours", ratio, MIN_CPU))
    return found


def settle(superuser_url: str) -> None:
    """Let Postgres tidy up and count its rows now: its own time for that would be in mid-run."""
    with closing(psycopg2.connect(superuser_url)) as conn, conn.cursor() as cursor:
        conn.autocommit = True
        cursor.execute("vacuum analyze")


def prepares(superuser_url: str, who: str) -> bool:
    """Say whether a connection of *who* executed a prepared statement as its last one."""
    with closing(psycopg2.connect(superuser_url)) as conn, conn.cursor() as cursor:
        cursor.execute("select query from pg_stat_activity where application_name = %s", (who,))
        return any(query.lower().startswith("execute ") for (query,) in cursor)


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.postgres", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of {ROUND_S} s for each")
    rounds = max(1, parser.parse_args().rounds)
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = report.Report("postgres")
    try:
        run(found, rounds)
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    print(f"\n{report.ratio_table(report.ratios(found.rows))}")
    print(NOTES)
    return promises.status(verdicts(found.rows)) or status


if __name__ == "__main__":
    raise SystemExit(main())
