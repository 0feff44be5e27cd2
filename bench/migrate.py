"""
What docs/migrate.md gains: five applications from the package index, with zero changed lines, on
gunicorn's sync and gthread workers, on ours, and on ours with ``GREENLINE_POOL=1``.

1. Each server has one worker and the first core; the clients and Postgres, which has its defaults,
   have the others (``bench/cores.py``). One server runs at a time and has all connections.
2. The clients are a closed loop, each over one connection. An answer that is not a success, or
   lacks what it must have in it, does not count.
3. After a round of writes the rows are counted: each acknowledged write is one, or the run is
   invalid. So it is where an answer of ours is wrong.
4. Rounds are interleaved; a figure is the median of them, and the connections are the most.

    python -m bench.migrate [--applications alerta,kinto] [--clients 50] [--rounds 2] [--seconds 3]
"""

import argparse
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2

from bench import cores, load, report
from bench.failures import FAILURES
from bench.legacy import make_database
from bench.legacy_environments import InstallError, find
from bench.migrate_lineup import APPLICATIONS, SERVERS, Application, Asked, Site
from bench.report import OURS
from bench.rounds import interleaved
from bench.servers import Server, allow_files
from embedded.postgres import Postgres, temporary

CLIENTS, ROUNDS, SECONDS = 50, 2, 3.0
WARM_CLIENTS, WARM_S = 8, 1.0
PATIENCE_S = 30
SAMPLE_S = 0.05
SUCCESS = ("200", "201")


@dataclass
class Figures:
    """What one server has done with one application, in each round."""

    reads: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    connections: int = 0


class Migrate(report.Report):
    """The runs, and the table that the page has."""

    def __init__(self, clients: int, rounds: int, seconds: float) -> None:
        super().__init__("migrate")
        self._clients, self._rounds, self._seconds = clients, rounds, seconds
        self._figures: dict[str, dict[str, Figures]] = {}
        self._cores, self._others = cores.divided()

    def measure(self, application: Application, postgres: Postgres, folder: Path) -> None:
        """Set *application* up, and host it on each server in turn."""
        print(f"{application.name}: tables and data", file=sys.stderr, flush=True)
        make_database(postgres, application.name)
        url, superuser = (
            each.replace("/greenline?", f"/{application.name}?")
            for each in (postgres.url, postgres.superuser_url)
        )
        folder.mkdir()
        site = Site(application, url, folder)
        names = application.set_up(site)
        found = self._figures[application.title] = {who: Figures() for who in SERVERS}
        for round_, who in interleaved(list(SERVERS), self._rounds):
            print(f"{application.name}: round {round_ + 1}, {who}", file=sys.stderr, flush=True)
            with cores.on(self._cores):
                server = site.server(who)
                server.start(limit_s=120)
            try:
                with cores.on(self._others):
                    run = Run(self, server, names, f"{who} {round_}")
                    self._round(application, run, found[who], superuser)
            finally:
                server.stop()

    def _round(self, application: Application, run: "Run", found: Figures, superuser: str) -> None:
        run.ask(application.read, WARM_CLIENTS, WARM_S)
        run.ask(application.write, WARM_CLIENTS, WARM_S)
        with counted(superuser) as most:
            speed, answers = run.ask(application.read, self._clients, self._seconds)
            found.reads.append(speed)
            self._judge(f"{application.name} {run.who}, reads", answers)
            before = rows(superuser, application.count)
            speed, answers = run.ask(application.write, self._clients, self._seconds)
            found.writes.append(speed)
            stored = rows(superuser, application.count) - before
        found.connections = max(found.connections, most[0])
        acknowledged = sum(answers[each] for each in SUCCESS)
        # A write without an answer may have been stored.
        if not acknowledged <= stored <= acknowledged + answers["error"]:
            self.invalid(f"{application.name} {run.who}: {stored} rows of {acknowledged} writes")
        for status in application.refused:
            del answers[status]
        self._judge(f"{application.name} {run.who}, writes", answers)

    def _judge(self, what: str, answers: Counter[str]) -> None:
        """Keep what went wrong: with ours the run is invalid."""
        wrong = {each: count for each, count in answers.items() if each not in SUCCESS}
        if wrong and OURS in what:
            self.invalid(f"{what}: {wrong}")
        elif wrong:
            print(f"{what}: {wrong}", file=sys.stderr, flush=True)

    def figures(self) -> dict[str, Any]:
        """Return the table of the page."""
        return {"table": self.table()}

    def table(self) -> str:
        """Return the figures as a table in Markdown."""
        lines = [f"| application | {self._clients} clients | {' | '.join(SERVERS)} |"]
        lines.append("|---|---|" + "---|" * len(SERVERS))
        for title, by in self._figures.items():
            lines += [
                f"| {title} | reads a second | {joined(each.reads for each in by.values())} |",
                f"| | writes a second | {joined(each.writes for each in by.values())} |",
                f"| | connections at most | {joined([each.connections] for each in by.values())} |",
            ]
        return "\n".join(lines)


def joined(figures: "Iterator[Sequence[float]]") -> str:
    """Return the cells of the medians."""
    return " | ".join(f"{statistics.median(each):.0f}" if each else "" for each in figures)


class Run:
    """
    The requests of one round to one *server*.

    :param names: what the headers name.
    :param who: the server and the round.
    """

    def __init__(self, found: Migrate, server: Server, names: Any, who: str) -> None:
        self.who = who
        self._found, self._server, self._names = found, server, names
        self._asked = 0

    def ask(self, asked: Asked, clients: int, seconds: float) -> tuple[float, Counter[str]]:
        """Ask for *seconds*; return the successes a second, and the answers by status."""
        self._asked += 1
        tag = f"{self.who} {self._asked}".replace(" ", "-").replace(",", "")
        run = load.run_for(
            [self._server.url + asked.path],
            seconds,
            clients,
            marker=asked.marker,
            headers={name: text.format_map(self._names) for name, text in asked.headers.items()},
            body=asked.body and asked.body.replace("{run}", tag),
            timeout_s=PATIENCE_S,
        )
        answers = Counter(each.status for each in run.answers)
        return sum(answers[each] for each in SUCCESS) / (run.seconds or 1.0), answers


def rows(url: str, statement: str) -> int:
    """Return the number that *statement* selects."""
    with closing(psycopg2.connect(url)) as conn, conn.cursor() as cursor:
        cursor.execute(statement)
        return int(cursor.fetchone()[0])


@contextmanager
def counted(url: str) -> Iterator[list[int]]:
    """Look at the connections for the length of the block; the item is the most of them."""
    most, over = [0], threading.Event()
    statement = "select count(*) from pg_stat_activity where usename = 'greenline'"

    def look() -> None:
        with closing(psycopg2.connect(url)) as conn, conn.cursor() as cursor:
            conn.autocommit = True
            while not over.is_set():
                cursor.execute(statement)
                most[0] = max(most[0], cursor.fetchone()[0])
                time.sleep(SAMPLE_S)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield most
    finally:
        over.set()
        looking.join()


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.migrate", description=__doc__)
    parser.add_argument("--applications", help="names, with commas")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a round")
    options = parser.parse_args()
    wanted = options.applications.split(",") if options.applications else None
    chosen = [each for each in APPLICATIONS if wanted is None or each.name in wanted]
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    allow_files()
    found = Migrate(options.clients, options.rounds, options.seconds)
    try:
        load.find()  # built now and not in mid-run
        for application in chosen:
            find(application.name)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
            with cores.on(cores.divided()[1]):
                postgres = stack.enter_context(temporary(100))
            for application in chosen:
                found.measure(application, postgres, folder / application.name)
    except (*FAILURES, InstallError) as error:
        found.invalid(str(error))
    return found.finish()


if __name__ == "__main__":
    raise SystemExit(main())
