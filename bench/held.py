"""
Applications whose own pools hold more connections than the budget has: they are taken over.

1. Four workers with ``GREENLINE_POOL=1`` on a budget of about 30, for 60 clients: SQLAlchemy with
   pools of 15, and Django that keeps the connection of each of its threads. Beside them what fits:
   pools of 7, and Django that closes after each request. Rounds are interleaved; the middle of the
   ratios is judged.
2. Then each request sets something in its session and reads it back; the next request with the same
   connection of SQLAlchemy's pool expects what the earlier one has left.
3. Any answer but the right one makes the run invalid.

    python -m bench.held [--checks 100000]
"""

import argparse
import signal
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import budget, load, promises, report
from bench.failures import FAILURES
from bench.rounds import interleaved
from bench.servers import ROOT, Gunicorn, allow_files
from embedded.postgres import Postgres, temporary

WORKERS, CLIENTS = 4, 60
MAX_CONNECTIONS = 37
ROUNDS, SECONDS = 5, 2.0
CHECKS = 100_000
MAX_WAIT_S, MIN_RATIO = 1.0, 0.8
MARKER = "right"  # of an answer
ARGUMENTS = (
    *("--worker-class", "greenline.worker.GreenWorker", "--workers", str(WORKERS)),
    *("--no-control-socket", "-c", "bench/peers/gunicorn_plain.py"),
)


@dataclass(frozen=True)
class Application:
    """One that holds *connections* of its own in each worker, or none for ever."""

    name: str
    app: str
    connections: int
    env: tuple[tuple[str, str], ...]


SQLALCHEMY = Application("SQLAlchemy, 15", "held_pool:app", 15, (("POOL_SIZE", "15"),))
FITTING = Application("SQLAlchemy, 7", "held_pool:app", 7, (("POOL_SIZE", "7"),))
# One a thread: as many as a worker has requests in progress.
DJANGO = Application("Django, kept", "held_django:app", CLIENTS // WORKERS, (("KEEP", "1"),))
CLOSING = Application("Django, closed", "held_django:app", 0, ())
PAIRS = ((SQLALCHEMY, FITTING), (DJANGO, CLOSING))


class Held:
    """The servers and their rows; figures and problems go into *found*."""

    def __init__(self, found: report.Report, postgres: Postgres, stack: ExitStack) -> None:
        self._found = found
        env = {
            "DATABASE_URL": postgres.url,
            "GREENLINE_POOL": "1",
            "GREENLINE_SURGE_HOSTS": "0",
            "WEB_CONCURRENCY": str(WORKERS),
        }
        self.plan = budget.ask(env)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        self._env, self._folder, self._stack = env, folder, stack

    def server(self, application: Application) -> Gunicorn:
        """Return the workers of *application*."""
        env = {**self._env, **dict(application.env)}
        arguments = [*ARGUMENTS, f"bench.peers.{application.app}"]
        log = self._folder / f"{application.name}.log"
        return Gunicorn(arguments, ready="/ready", env=env, log=log, cwd=ROOT)

    def compare(self, holding: Application, fitting: Application) -> list[promises.Verdict]:
        """Measure one that holds too many connections beside one that does not."""
        rows: dict[Application, list[report.Row]] = {holding: [], fitting: []}
        longest_s = 0.0
        for round_, application in interleaved([holding, fitting], ROUNDS):
            print(f"{application.name}, round {round_ + 1}", file=sys.stderr, flush=True)
            # One at a time: both have the whole budget.
            with self.server(application) as server:
                self._ask(server, 0.5)
                run = self._ask(server, SECONDS)
            rows[application].append(self._row("work", application, run))
            if application == holding:
                longest_s = max(longest_s, *(each.took_s for each in run.answers))
        ratios = [
            held.req_s / fits.req_s for held, fits in zip(rows[holding], rows[fitting], strict=True)
        ]
        for each in rows.values():
            self._found.add(report.middle(each))
        return [
            promises.at_least(
                f"{holding.name}, answers a second over {fitting.name}",
                statistics.median(ratios),
                MIN_RATIO,
            ),
            promises.at_most(f"{holding.name}, seconds, the slowest answer", longest_s, MAX_WAIT_S),
        ]

    def check(self, checks: int) -> list[promises.Verdict]:
        """Let requests set and read back their state until there were *checks*."""
        done, seconds = 0, SECONDS
        with self.server(SQLALCHEMY) as server:
            while done < checks:
                print(f"{done} checks", file=sys.stderr, flush=True)
                run = self._ask(server, seconds, "/check")
                row = self._row("check", SQLALCHEMY, run)
                if set(row.answers) != {"200"}:
                    break
                done += row.answers["200"]
                seconds = 10.0
        return [promises.at_least("requests that found their own state", done, checks)]

    def _ask(self, server: Gunicorn, seconds: float, path: str = "/work") -> load.Run:
        return load.run_for([server.url + path], seconds, CLIENTS, marker=MARKER, headers={})

    def _row(self, work: str, application: Application, run: load.Run) -> report.Row:
        result = load.together([run], CLIENTS)
        if set(result.answers) != {"200"}:
            self._found.invalid(f"{work}, {application.name}: answers {result.answers}")
        return report.row(work, application.name, result)


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="bench.held", description="Pools above the pool.")
    parser.add_argument("--checks", type=int, default=CHECKS, help="requests that check")
    options = parser.parse_args()
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    allow_files()
    found = report.Report("held")
    try:
        with ExitStack() as stack:
            postgres = stack.enter_context(temporary(MAX_CONNECTIONS))
            held = Held(found, postgres, stack)
            print(f"a budget of {held.plan.host} connections", file=sys.stderr)
            for holding, fitting in PAIRS:
                found.verdicts += held.compare(holding, fitting)
            found.verdicts += held.check(options.checks)
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    return promises.status(found.verdicts) or status


if __name__ == "__main__":
    raise SystemExit(main())
