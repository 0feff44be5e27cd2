"""
Draw the limit that our worker finds without any setting, where threads would be few.

1. ``nested``: requests that hold one connection of SQLAlchemy's pool of 15 and ask for a second
   one, 50 clients; compared, in turns, with a worker whose limit is fixed at 14. Each round has a
   fresh worker, and counts from its first request on. A ratio that misses is measured once more,
   with as many rounds again, and all of them count.
2. ``sleep``: 100 requests at once that sleep a second, on a fresh worker; then quick ones for ten
   seconds; then 300 at once that sleep.
3. ``connect``: 80 clients that each connect to a Postgres of 100 connections and sleep there.

The worker has the first core, the others have the rest. The exit status is 1 when the run is
invalid or a promise is missed.

    python -m bench.limit
"""

import argparse
import http.client
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Self

from bench import cores, load, picture, promises, report
from bench.failures import FAILURES
from bench.http_lineup import GREEN
from bench.legacy import errors, together
from bench.legacy_lineup import MAX_CONNECTIONS, PINNED
from bench.picture import Points
from bench.report import OURS
from bench.rounds import interleaved
from bench.servers import ROOT, Gunicorn, without_settings
from bench.vegeta import Answer
from embedded.postgres import temporary
from greenline import settings

FIXED = "limit 14"
SETTINGS: dict[str, dict[str, str]] = {OURS: {}, FIXED: {settings.MAX_IN_PROGRESS.name: "14"}}
NESTED, SLEEP, QUICK, AGAIN, CONNECT = "nested", "sleep", "quick", "sleep again", "connect"
CLIENTS = {NESTED: 50, SLEEP: 100, QUICK: 20, AGAIN: 300, CONNECT: 80}
NESTED_ROUNDS, NESTED_S, QUICK_S, CONNECT_S = 3, 2.5, 10.0, 5.0
PATIENCE_S = 15
LIMIT_SAMPLE_S = 0.1
MIN_RATIO, MAX_SLEEP_S, MAX_AGAIN_S = 0.9, 3.0, 2.0
PICTURED = ("limit", "requests in progress", "answers 200 a second")
BIN_S = 0.5  # of the answers a second in the picture
NOTES = f"""
each: one worker, {OURS} without any setting
a row of {NESTED} is the middle round, with the answers of all, and those are what is judged
first s: answers 200 in the first second; longest s: the slowest answer; limit: at the end
the picture is saved next to the JSON, bench/results/limit.png; of {NESTED} it has the last round"""


class Course:
    """
    What *server* did over time, for the length of a ``with`` block; seconds count from its begin.

    It is asked for its limit and its requests in progress as often as it reads them itself.
    """

    def __init__(self, server: Gunicorn) -> None:
        self.server = server
        self.answers: list[Answer] = []
        self.limit: list[tuple[float, float]] = []
        self.in_progress: list[tuple[float, float]] = []
        self._over = Event()
        self._thread = Thread(target=self._sample, daemon=True)
        self._began_s = 0.0

    def __enter__(self) -> Self:
        self._began_s = monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def at_once(self, work: str, path: str) -> report.Row:
        """Send a request for *path* from each client of *work*, at once."""
        began_s, clients = self._now_s(), CLIENTS[work]
        run = load.run([self.server.url + path], clients, clients, timeout_s=PATIENCE_S)
        return self._row(work, OURS, run, began_s)

    def for_a_time(
        self, work: str, path: str, seconds: float, marker: str, who: str = OURS
    ) -> report.Row:
        """Have the clients of *work* ask for *path* for *seconds*; an answer has *marker* in it."""
        began_s, url = self._now_s(), self.server.url + path
        run = load.run_for(
            [url], seconds, CLIENTS[work], marker=marker, headers={}, timeout_s=PATIENCE_S
        )
        return self._row(work, who, run, began_s)

    def points(self) -> tuple[Points, Points, Points]:
        """Return what PICTURED names, over time."""
        return self.limit, self.in_progress, throughput(self.answers)

    def _row(self, work: str, who: str, run: load.Run, began_s: float) -> report.Row:
        self.answers += [replace(each, sent_s=each.sent_s + began_s) for each in run.answers]
        return report.row(
            work, who, load.together([run], CLIENTS[work]), self.server.rss_mb(),
            **{
                "first s": sum(ended_s <= 1 for ended_s in ends(run.answers)),
                "longest s": round(max((each.took_s for each in run.answers), default=0.0), 2),
                "limit": int(self.limit[-1][1]) if self.limit else None,
            },
        )  # fmt: skip

    def _sample(self) -> None:
        while not self._over.wait(LIMIT_SAMPLE_S):
            try:
                status, body = self.server.get(self.server.ready)
            except (OSError, http.client.HTTPException):
                continue  # a gap in the picture
            if status == 200:
                state, now_s = json.loads(body), self._now_s()
                self.limit.append((now_s, state["limit"]))
                self.in_progress.append((now_s, state["in_progress"]))

    def _now_s(self) -> float:
        return monotonic() - self._began_s


class Situations:
    """The three of them; rows go into *found*, lines into ``pictures``."""

    def __init__(self, found: report.Report, database_url: str, folder: Path) -> None:
        self._found = found
        self._database_url = database_url
        self._folder = folder
        self._cores, self._others = cores.divided()
        self.pictures: dict[str, picture.Panels] = {}

    def nested(self) -> list[promises.Verdict]:
        """Compare the default with a fixed limit, where each request needs two connections."""
        rows: dict[str, list[report.Row]] = {who: [] for who in SETTINGS}
        verdicts: list[promises.Verdict] = []
        for _ in range(2):
            for _, who in interleaved(list(SETTINGS), NESTED_ROUNDS):
                with self._watched("a pool of 15, two connections each", who) as course:
                    rows[who].append(course.for_a_time(NESTED, "/nested", NESTED_S, "42", who))
            verdicts = judge_nested(rows)
            if all(each.kept for each in verdicts):
                break
        for row in together(rows):
            self._found.add(row)
        return verdicts

    def sleep(self) -> list[promises.Verdict]:
        """Sleep on a fresh worker, and on one that has had quick requests."""
        with self._watched("sleep, quick ones, sleep", OURS) as course:
            rows = [
                course.at_once(SLEEP, "/sleep"),
                course.for_a_time(QUICK, "/", QUICK_S, "ok"),
                course.at_once(AGAIN, "/sleep"),
            ]
        for row in rows:
            self._found.add(row)
        return judge_sleep(rows)

    def connect(self) -> list[promises.Verdict]:
        """Connect for each request, with nearly as many clients as Postgres has connections."""
        with self._watched("80 that connect and sleep there", OURS) as course:
            row = course.for_a_time(CONNECT, "/pg-sleep", CONNECT_S, "slept")
        self._found.add(row)
        return [no_error([row])]

    def server(self, who: str) -> Gunicorn:
        """Return a server with the settings of *who*, to be entered."""
        env = {"PYTHONPATH": str(ROOT), "DATABASE_URL": self._database_url, **SETTINGS[who]}
        server = Gunicorn(
            [*PINNED, *GREEN, "bench.peers.limit_app:app"],
            ready="/readyz",
            env=env,
            log=self._folder / "server.log",
            # Not the checkout: gunicorn would read its gunicorn.conf.py.
            cwd=self._folder,
        )
        server.env = without_settings(server.env, env)
        return server

    @contextmanager
    def _watched(self, situation: str, who: str) -> Iterator[Course]:
        """Start the server *who*; draw what it does in the block."""
        print(f"{situation}: {who}", file=sys.stderr, flush=True)
        with ExitStack() as stack:
            with cores.on(self._cores):
                server = stack.enter_context(self.server(who))
            stack.enter_context(cores.on(self._others))
            with Course(server) as course:
                yield course
        panels = self.pictures.setdefault(situation, {name: {} for name in PICTURED})
        for name, points in zip(PICTURED, course.points(), strict=True):
            panels[name][who] = points


def ends(answers: Sequence[Answer]) -> list[float]:
    """Return when each answer 200 came, in seconds."""
    return [each.sent_s + each.took_s for each in answers if each.status == "200"]


def throughput(answers: Sequence[Answer]) -> Points:
    """Return the answers 200 a second, over time."""
    counts = Counter(int(ended_s / BIN_S) for ended_s in ends(answers))
    return [
        ((each + 0.5) * BIN_S, counts[each] / BIN_S) for each in range(max(counts, default=-1) + 1)
    ]


def judge_nested(rows: Mapping[str, Sequence[report.Row]]) -> list[promises.Verdict]:
    """Judge the default's speed over the fixed limit's, and its errors."""
    ours, fixed = (sum(row.answers.get("200", 0) for row in rows[who]) for who in SETTINGS)
    what = f"{NESTED}, answers in {NESTED_S:g} s of a fresh worker over those with {FIXED}"
    return [
        promises.at_least(what, ours / max(fixed, 1), MIN_RATIO),
        *(no_error(rows[who]) for who in SETTINGS),
    ]


def judge_sleep(rows: Sequence[report.Row]) -> list[promises.Verdict]:
    """Judge how long the requests took that slept."""
    first, _, again = rows
    return [
        promises.at_most(f"{first.work}, s", first.more["longest s"], MAX_SLEEP_S),
        promises.at_most(f"{again.work}, s", again.more["longest s"], MAX_AGAIN_S),
        *(no_error([row]) for row in rows),
    ]


def no_error(rows: Sequence[report.Row]) -> promises.Verdict:
    """Judge whether all answers of *rows* were right."""
    what = f"{rows[0].work}, {rows[0].who}: answers that are not right"
    return promises.at_most(what, sum(map(errors, rows)), 0)


def run(found: report.Report) -> list[promises.Verdict]:
    """Start Postgres, bring the worker into each situation, draw it, and judge."""
    load.find()  # Built now and not in mid-run.
    with (
        tempfile.TemporaryDirectory(prefix="gl-") as folder,
        temporary(MAX_CONNECTIONS) as postgres,
    ):
        situations = Situations(found, postgres.url, Path(folder))
        verdicts = [*situations.nested(), *situations.sleep(), *situations.connect()]
    picture.over_time(situations.pictures, report.RESULTS / "limit.png")
    return verdicts


def main() -> int:
    """Run the bench, print and write what came of it."""
    argparse.ArgumentParser(prog="python -m bench.limit", description=__doc__).parse_args()
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = report.Report("limit")
    verdicts: list[promises.Verdict] = []
    try:
        verdicts = found.verdicts = run(found)
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    print(f"\n{report.ratio_table(report.ratios(found.rows))}")
    print(f"{NOTES}\n")
    return promises.status(verdicts) or status


if __name__ == "__main__":
    raise SystemExit(main())
