"""
Reads from Postgres: our service beside four other ways to serve the same JSON.

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
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg2

from bench import compiled, report
from bench.contenders import flask
from bench.failures import FAILURES
from bench.lineup import POOL_SIZE, WITHOUT_PREPARE, lineup
from bench.rounds import ROUND_S, Work, compete, same_answers
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
NOTES = f"""
of a page only the books are compared: ours alone says where it goes on, which costs it a little
each has one worker, a pool of {POOL_SIZE} connections and no access log; Postgres on a unix socket
ours is compiled, as a wheel is
hey, the servers and Postgres share this machine's cores: compare rows, not machines
a row is the middle one of its rounds; memory is that of all processes, gunicorn's arbiter too"""


def run(found: report.Report, rounds: int) -> None:
    """Start the databases and everybody, compare what they answer, and measure them."""
    compiled.build()
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
    return status


if __name__ == "__main__":
    raise SystemExit(main())
