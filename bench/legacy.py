"""
Applications that were written for threads, unmodified: on our worker without a setting, and on
gunicorn's gthread with 8, 16 and 32 threads.

1. Every server has one worker, the first core with all the others, and a Postgres of its own with
   the defaults: idle connections of one do not count for another. The load and the databases have
   the other cores (``bench/cores.py``).
2. The clients are a closed loop, each over one connection (``bench.load``). An answer that is not
   a 200, whose body lacks what it must have in it ("differs"), or that does not come ("error")
   is an error; what is in progress at the end of a round is waited for and counts.
3. Rounds are interleaved; a row is the middle one of them, with the answers of all. A gthread that
   is far behind the best in the first round is not measured again. What is judged is the middle of
   our ratios to the best peer in each round. Where it misses its promise, ours and that peer are
   started again and measured in as many rounds more, and all of them count: a process may be some
   percent slower than the next one of the same code.
4. Before that all clients of the largest number ask new workers at once: of these answers the
   errors are judged alone.
5. The exit status is 1 when the run is invalid, misses a promise or takes more than 20 minutes.
   ``--pool`` judges our worker with ``GREENLINE_POOL=1``. With other settings of ours (``--set``)
   it is an experiment, and nothing is judged. The results of both have files of their own.

    python -m bench.legacy [--works 'django-*,httpbin-json'] [--clients 20,50] [--quick] [--pool]
                           [--set GREENLINE_MAX_IN_PROGRESS=14] [--threads 16]
"""

import argparse
import fnmatch
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

import psycopg2
from psycopg2 import sql

from bench import cores, legacy_lineup, load, picture, promises, report
from bench.failures import FAILURES
from bench.legacy_environments import InstallError, find
from bench.legacy_lineup import THREADS, WORKS, Application, Work
from bench.operations import Spent
from bench.proc import TICKS_A_SECOND
from bench.report import OURS
from bench.rounds import interleaved
from bench.servers import Server
from embedded.postgres import Postgres, temporary

CLIENTS = (20, 50, 200)
ROUNDS, SECONDS = 3, 1.0
QUICK_ROUNDS, QUICK_SECONDS = 1, 1.0
WARM_CLIENTS, WARM_S = 8, 0.5
BURST_S = 0.1
PATIENCE_S = 12
FAR_BEHIND = 0.6
POOL = {"GREENLINE_POOL": "1"}
# A miss is measured again so often, but not later.
MAX_REPEATS, REPEATS_UNTIL_S = 3, 800
MAX_MINUTES = 20
NOTES = f"""
each: one worker; greenline without a setting; gthread-N: gunicorn's with N threads
a row is the middle one of its rounds by req/s; its answers are those of all rounds together
req/s: 200s with the right body, until the last answer of those asked in time has come
cpu ms: what the server's processes spent of the processor for one answer
a verdict is the middle of the ratios in each round, which cancels what the machine does meanwhile
"error": cut, or no answer after {PATIENCE_S} s; "differs": a 200 with the wrong body
the picture is saved next to the JSON, bench/results/legacy.png"""


class Legacy:
    """The runs; rows and problems go into *found*."""

    def __init__(
        self,
        found: report.Report,
        folder: Path,
        databases: Mapping[str, Postgres],
        *,
        rounds: int,
        seconds: float,
        given: Mapping[str, str],
        is_judged: bool,
    ) -> None:
        self._found = found
        self._folder = folder
        self._databases = databases
        self._rounds = rounds
        self._seconds = seconds
        self._given = given
        self._is_judged = is_judged
        self._cores, self._others = cores.divided()
        self._no_more_repeats_s = monotonic() + REPEATS_UNTIL_S

    @contextmanager
    def started(self, application: Application) -> Iterator[dict[str, Server]]:
        """Host *application* on all servers for the length of the block."""
        with ExitStack() as stack:
            servers: dict[str, Server] = {}
            with cores.on(self._cores):
                for who, postgres in self._databases.items():
                    url = address(postgres, application)
                    server = legacy_lineup.server(
                        who, application, url, self._folder / who, self._given
                    )
                    servers[who] = stack.enter_context(server)
            yield servers

    def measure(self, work: Work, clients: Sequence[int]) -> list[promises.Verdict]:
        """Measure *work* on all servers, which host its application, and judge it."""
        verdicts: list[promises.Verdict] = []
        with self.started(work.application) as servers, cores.on(self._others):
            verdicts += self._burst(work, servers, max(clients))
            self._warm(work, servers.values())
            for many in clients:
                verdicts += self._compare(work, servers, many)
        return verdicts

    def _burst(
        self, work: Work, servers: Mapping[str, Server], clients: int
    ) -> list[promises.Verdict]:
        """Judge the errors of the first answers, for which all clients ask at once."""
        rows = [
            report.row(work.name, who, load.together([run], clients))
            for who, run in (
                (who, self._ask(work, server, clients, BURST_S)) for who, server in servers.items()
            )
        ]
        (ours,) = (row for row in rows if row.who == OURS)
        found = judge_errors(f"{work.name}, new workers", ours, best_peer(rows))
        return found if self._is_judged else []

    def _restart(self, work: Work, servers: Collection[Server]) -> None:
        with cores.on(self._cores):
            for server in servers:
                server.stop()
                server.start()
        self._warm(work, servers)

    def _warm(self, work: Work, servers: Collection[Server]) -> None:
        for server in servers:
            self._ask(work, server, WARM_CLIENTS, WARM_S)

    def _compare(
        self, work: Work, servers: Mapping[str, Server], clients: int
    ) -> list[promises.Verdict]:
        print(f"{work.name}, {clients} clients", file=sys.stderr, flush=True)
        rows: dict[str, list[report.Row]] = {who: [] for who in servers}
        self._rounds_of(work, servers, clients, rows)
        verdicts = judge(work, rows)
        for _ in range(MAX_REPEATS if self._is_judged else 0):
            is_missed = any(each.kept is False for each in verdicts)
            if not is_missed or monotonic() >= self._no_more_repeats_s:
                break
            print(f"{work.name}, {clients} clients, again", file=sys.stderr, flush=True)
            best = best_peer(together(rows))
            pair = {who: servers[who] for who in (OURS, best.who)}
            self._restart(work, pair.values())
            self._rounds_of(work, pair, clients, rows)
            verdicts = judge(work, rows)
        for row in together(rows):
            self._found.add(row)
        if not self._is_judged:
            return []
        self._found.verdicts.append(verdicts[0])
        return verdicts

    def _rounds_of(
        self,
        work: Work,
        servers: Mapping[str, Server],
        clients: int,
        rows: Mapping[str, list[report.Row]],
    ) -> None:
        for round_, (who, server) in interleaved(list(servers.items()), self._rounds):
            if round_ and is_far_behind(who, rows):
                continue
            before = Spent.until_now(server, None)
            run = self._ask(work, server, clients, self._seconds)
            spent = Spent.until_now(server, None) - before
            result = load.together([run], clients)
            cpu_ms = spent.server * 1000 / TICKS_A_SECOND / max(1, result.asked)
            more = {"cpu ms": round(cpu_ms, 2)}
            rows[who].append(report.row(work.name, who, result, server.rss_mb(), **more))

    def _ask(self, work: Work, server: Server, clients: int, seconds: float) -> load.Run:
        return load.run_for(
            [server.url + work.path],
            seconds,
            clients,
            marker=work.marker,
            headers=work.headers,
            body=work.body,
            timeout_s=PATIENCE_S,
        )


def is_far_behind(who: str, rows: Mapping[str, Sequence[report.Row]]) -> bool:
    """Return whether *who* cannot be the best gthread, by its first row and those of the others."""
    first = {each: found[0].req_s for each, found in rows.items() if found and each != OURS}
    return who != OURS and first[who] < FAR_BEHIND * max(first.values())


def together(rows: Mapping[str, Sequence[report.Row]]) -> list[report.Row]:
    """Return the middle row of each server, with the answers of all its rounds."""
    found = []
    for each in rows.values():
        answers: dict[str, int] = {}
        for row in each:
            for status, count in row.answers.items():
                answers[status] = answers.get(status, 0) + count
        found.append(replace(report.middle(each), answers=answers))
    return found


def best_peer(rows: Sequence[report.Row]) -> report.Row:
    """Return the row of the fastest gthread."""
    return max((row for row in rows if row.who != OURS), key=lambda row: row.req_s)


def errors(row: report.Row) -> int:
    """Return how many answers of *row* were not right."""
    return sum(row.answers[status] for status in wrong(row))


def wrong(row: report.Row) -> list[str]:
    """Return the statuses in *row* that are not right."""
    return [status for status in row.answers if status != "200"]


def share(row: report.Row, status: str) -> float:
    """Return the part of the answers of *row* that has *status*."""
    return row.answers.get(status, 0) / max(1, sum(row.answers.values()))


def judge(work: Work, rows: Mapping[str, Sequence[report.Row]]) -> list[promises.Verdict]:
    """Judge our speed and our errors at *work* against the best gthread; *rows* of all rounds."""
    (ours,) = (row for row in together(rows) if row.who == OURS)
    best = best_peer(together(rows))
    threads = int(best.who.removeprefix("gthread-"))
    promised = work.promised(ours.clients, threads)
    what = f"{work.name}, {ours.clients} clients, req/s over {best.who}"
    if work.waits and work.connections and promised < legacy_lineup.at_waits(ours.clients):
        ceiling = work.ceiling(ours.clients, threads)
        what += f" ({work.ours or work.connections} connections allow {ceiling:.2f} at most)"
    ratio = report.paired(rows[OURS], rows[best.who])
    if work.explained:
        what += f" ({work.explained})"
    return [promises.at_least(what, ratio, promised), *judge_errors(work.name, ours, best)]


def judge_errors(what: str, ours: report.Row, best: report.Row) -> list[promises.Verdict]:
    """Judge the errors of *ours*, if there are any, against those of the *best* gthread."""
    if not errors(ours):
        return []
    kept = all(share(best, status) >= share(ours, status) for status in wrong(ours))
    text = f"{what}, {ours.clients} clients: {ours.others()} (best gthread: "
    return [promises.Verdict(kept, f"{text}{best.others() or 'no error'})")]


def address(postgres: Postgres, application: Application) -> str:
    """Return the address of the database of *application* in *postgres*."""
    return postgres.url.replace("@/greenline?", f"@/{application.name}?")


@contextmanager
def prepared(
    applications: Sequence[Application], who: Sequence[str], folder: Path
) -> Iterator[dict[str, Postgres]]:
    """Run a Postgres for each server of *who*, all with the same data of *applications*."""
    with ExitStack() as stack:
        first = stack.enter_context(temporary(legacy_lineup.MAX_CONNECTIONS))
        for application in {each.name: each for each in applications}.values():
            if application.fill is not None:
                print(f"filling the tables of {application.name}", file=sys.stderr, flush=True)
                make_database(first, application.name)
                application.make_tables(address(first, application), folder)
        servers = {who[0]: first}
        first.stop()
        for each in who[1:]:
            servers[each] = stack.enter_context(copy(first))
        first.start()
        yield servers


def make_database(postgres: Postgres, name: str) -> None:
    """Make the database *name*, which ``greenline`` owns."""
    connection = psycopg2.connect(postgres.superuser_url)
    try:
        connection.autocommit = True
        statement = sql.SQL("create database {} owner greenline")
        with connection.cursor() as cursor:
            cursor.execute(statement.format(sql.Identifier(name)))
    finally:
        connection.close()


@contextmanager
def copy(stopped: Postgres) -> Iterator[Postgres]:
    """Run a Postgres that begins with the data of one that is *stopped*."""
    folder = Path(tempfile.mkdtemp(prefix="greenline-data-", dir=stopped.folder.parent))
    folder.chmod(0o755)
    made = Postgres(folder, stopped.max_connections, durable=False)
    try:
        # Not by shutil: the files belong to the user that Postgres runs as.
        subprocess.run(["cp", "-a", stopped.folder / "data", folder / "data"], check=True)
        made.start()
        yield made
    finally:
        made.remove()


def chosen(names: str) -> list[Work]:
    """Return the works that *names*, patterns with commas between them, match."""
    patterns = names.split(",")
    return [work for work in WORKS if any(fnmatch.fnmatch(work.name, each) for each in patterns)]


def run(found: report.Report, options: argparse.Namespace) -> list[promises.Verdict]:
    """Prepare everything, measure the works in turn, and judge."""
    works = [work.with_pool() if options.pool else work for work in chosen(options.works)]
    if not works:
        names = " ".join(work.name for work in WORKS)
        raise load.LoadError(f"no work is called {options.works}; there are: {names}")
    load.find()  # Built now and not in mid-run.
    for work in works:
        find(work.application.name)
    verdicts: list[promises.Verdict] = []
    began_s = monotonic()
    who = [OURS, *map(legacy_lineup.gthread, options.threads)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        applications = [work.application for work in works]
        databases = stack.enter_context(prepared(applications, who, folder))
        bench = Legacy(
            found,
            folder,
            databases,
            rounds=options.rounds,
            seconds=options.seconds,
            given={**POOL, **options.set} if options.pool else options.set,
            is_judged=not options.set,
        )
        for work in works:
            verdicts += bench.measure(work, options.clients)
    minutes = (monotonic() - began_s) / 60
    return [*verdicts, promises.at_most("minutes of the run", minutes, MAX_MINUTES)]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options in *arguments*."""

    def numbers(text: str) -> list[int]:
        return [int(each) for each in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m bench.legacy", description=__doc__)
    parser.add_argument("--works", default="*", help="names or patterns, with commas")
    parser.add_argument("--clients", type=numbers, default=list(CLIENTS))
    parser.add_argument("--threads", type=numbers, default=list(THREADS), help="of the gthreads")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None, help="of a round")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--pool", action="store_true", help="ours with GREENLINE_POOL=1")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="for ours: an experiment"
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    if any("=" not in each for each in options.set):
        parser.error("--set NAME=VALUE")
    options.set = dict(each.split("=", 1) for each in options.set)
    return options


def main() -> int:
    """Run the bench, print and write what came of it."""
    options = parsed()
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    name = "legacy-pool" if options.pool else "legacy"
    name = "legacy-experiment" if options.set else name
    found = report.Report(name)
    verdicts: list[promises.Verdict] = []
    try:
        verdicts = run(found, options)
    except (*FAILURES, InstallError, subprocess.CalledProcessError) as error:
        found.invalid(str(error))
    status = found.finish()
    print(f"\n{report.ratio_table(report.ratios(found.rows))}")
    print(f"{NOTES}\n")
    if options.set:
        print(f"EXPERIMENT, not judged: {options.set}")
    status = promises.status(verdicts) or status
    if found.rows:
        picture.ratios(found.rows, promises_of(found.rows), report.RESULTS / f"{name}.png")
    return status


def promises_of(rows: Sequence[report.Row]) -> dict[tuple[str, int], float]:
    """Return what is promised for each work and number of clients in *rows*."""
    works = {work.name: work for work in WORKS}
    cells = {(row.work, row.clients) for row in rows}
    found = {}
    for name, clients in cells:
        those = [row for row in rows if (row.work, row.clients) == (name, clients)]
        threads = int(best_peer(those).who.removeprefix("gthread-"))
        found[name, clients] = works[name].promised(clients, threads)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
