"""
Copy fake products within a database: ours, and the ways in which a script does it (no. 4).

1. In memory with 10 ms of round trip, COUNT products, ROUNDS rounds in turns: what is judged is
   the middle of the rounds' ratios of documents a second. The engine's ``-delay`` stands for the
   network and a proxy before it: it holds each message for half of that time on its way in, and
   the answer on its way out, each connection for itself; it limits no bandwidth.
2. On SecantusDB (or the MongoDB of MONGODB_URI) SLOW_COUNT products, once: only reported.
3. ``greenline`` is ``flask documents copy --new-ids`` with ten batches at once; the others are in
   :mod:`bench.peers.copying`. Each is a process of its own. All give new ids, but for ``import``,
   which reads a file of the same documents.
4. Seconds are those of the copying alone, as each one tells them; ``whole s`` is the whole process,
   which with ours includes the comparison of both sides at the end.
5. The run is invalid when a copy fails, or its target has another number of documents, or when
   all takes longer than LIMIT_S.
6. Then a missing field and a default value are asked for (:mod:`bench.plans`).

    python -m bench.documents [--count 300000] [--rounds 3]
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Event, Thread, Timer
from time import monotonic
from typing import Any

from pymongo import MongoClient

from app.documents.checkpoint import COLLECTION as CHECKPOINTS
from bench import mongodb, picture, plans, proc, promises, report
from bench.contenders import flask
from bench.failures import FAILURES
from bench.report import OURS
from bench.rounds import interleaved
from bench.servers import ROOT, ServerError

COUNT, SLOW_COUNT, ROUNDS, ROUND_TRIP_MS = 300_000, 30_000, 3, 10
MEMORY = mongodb.name_in_memory(ROUND_TRIP_MS)
AT_ONCE = 10
LIMIT_S = 600.0  # of all
RSS_SAMPLE_S = 0.05
SOURCE, TARGET, FILE = "products", "copied", "products.ndjson"
SEQUENCE, GATHER, ASYNCIO, IMPORT = "sequence", "gather", "asyncio", "import"
WHO = (SEQUENCE, OURS, ASYNCIO, GATHER, IMPORT)
# Documents a second, ours over theirs; the first is what the source has over its sequence.
FLOORS = {SEQUENCE: 1.36, ASYNCIO: 1.0}
NOTES = f"""
a row is the round with the middle documents/s; spread: how far the rounds lie apart
{OURS} compares both sides after the copy, which is in "whole s" alone; rss MB is the peak of both
cpu s: of the process, its start included, until the copy is done
{SEQUENCE}, {GATHER}: the scripts of no. 4; {IMPORT}: from a file, as mongoimport with one worker
the picture is beside the JSON, bench/results/documents.png"""


@dataclass(frozen=True)
class Copied:
    """One copy of *documents*, by *who* on the engine *on*."""

    on: str
    who: str
    documents: int
    seconds: float
    cpu_s: float
    rss_mb: float
    whole_s: float
    spread: float | None = None

    @property
    def rate(self) -> float:
        """Documents a second."""
        return self.documents / self.seconds


class Report(report.Report):
    """The copies of all rounds, and the plans."""

    def __init__(self, folder: Path = report.RESULTS) -> None:
        super().__init__("documents", folder)
        self.copies: list[Copied] = []
        self.plans: list[plans.Plan] = []

    def figures(self) -> dict[str, Any]:
        rates = [{**asdict(each), "documents_s": round(each.rate)} for each in self.copies]
        plans = [asdict(each) for each in self.plans]
        return {"copies": rates, "plans": plans, "ratios": ratios(self.copies)}

    def table(self) -> str:
        names = ["on", "who", "documents", "seconds", "documents/s", "rss MB", "cpu s", "whole s"]
        lines = [[*names, "spread"]]
        for each in middles(self.copies):
            figures = [each.on, each.who, f"{each.documents:,}", f"{each.seconds:.2f}"]
            figures += [f"{each.rate:,.0f}", each.rss_mb, f"{each.cpu_s:.2f}"]
            figures += [f"{each.whole_s:.2f}", each.spread]
            lines.append(["" if figure is None else str(figure) for figure in figures])
        return f"{report.aligned(lines, names=2)}\n\n{plans.table(self.plans)}"


class Peak:
    """The peak memory of *pid* in a ``with`` block; looked at often, as it is gone at the end."""

    def __init__(self, pid: int) -> None:
        self.mb = 0.0
        self._pid = pid
        self._over = Event()
        self._thread = Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(RSS_SAMPLE_S):
            self.mb = max(self.mb, proc.peak_mb(self._pid))


class Copies:
    """Copy on the engine *mongo* until *end_s*, which is of the monotonic clock."""

    def __init__(self, mongo: mongodb.Lent, folder: Path, end_s: float) -> None:
        self._mongo = mongo
        self._folder = folder
        self._end_s = end_s

    def fill(self, count: int) -> None:
        """Write *count* products into the source, and into a file."""
        print(f"{self._mongo.name}: {count:,} products", file=sys.stderr, flush=True)
        source = self._place(SOURCE)
        flask("documents", "populate", source, str(count), env=os.environ)
        flask("documents", "export", source, str(self._folder / FILE), env=os.environ)

    def require_time(self) -> None:
        """
        Refuse to go on after the end.

        :raises ServerError: it is over.
        """
        if monotonic() >= self._end_s:
            raise ServerError(f"all together took longer than {LIMIT_S:g} s")

    def measure(self, who: str, count: int) -> Copied:
        """
        Have *who* copy the *count* products into an empty target.

        :raises ServerError: it failed, or not all of them are there.
        """
        print(f"{self._mongo.name}: {who}", file=sys.stderr, flush=True)
        with self._database() as database:
            for name in (TARGET, CHECKPOINTS):
                database.drop_collection(name)
            copied = self._run(who, self._command(who))
            there = database[TARGET].count_documents({})
        if not count == there == copied.documents:
            what = f"{there:,} of {count:,} documents are there, reported {copied.documents:,}"
            raise ServerError(f"{who} on {self._mongo.name}: {what}")
        return copied

    def _command(self, who: str) -> list[str]:
        if who == OURS:
            options = ("--new-ids", "--batches-at-once", str(AT_ONCE), "--json")
            failed = ("--failed", str(self._folder / "failed.ndjson"))
            places = (self._place(SOURCE), self._place(TARGET))
            return [sys.executable, "-m", "flask", "documents", "copy", *places, *options, *failed]
        source = str(self._folder / FILE) if who == IMPORT else SOURCE
        module = "bench.peers.copying"
        return [sys.executable, "-m", module, who, self._mongo.uri, source, TARGET]

    def _run(self, who: str, command: Sequence[str]) -> Copied:
        begin_s, log, ended = monotonic(), self._folder / "copy.log", {}
        with (
            log.open("w") as errors,
            Popen(command, cwd=ROOT, stdout=PIPE, stderr=errors) as process,
            Peak(process.pid) as peak,
        ):
            late = Timer(self._end_s - begin_s, process.kill)
            late.start()
            try:
                assert process.stdout is not None
                for line in map(json.loads, process.stdout):
                    if "copied" in line:  # what follows is the comparison
                        cpu_s = proc.cpu_ticks(process.pid) / proc.TICKS_A_SECOND
                        ended = {**line, "cpu_s": cpu_s}
                process.wait()
            finally:
                late.cancel()
                process.kill()
        if process.returncode or not ended:
            raise ServerError(f"{who} on {self._mongo.name}: {log.read_text()[-500:].strip()}")
        return Copied(
            self._mongo.name, who, ended["copied"], ended["seconds"], ended["cpu_s"],
            peak.mb, monotonic() - begin_s,
        )  # fmt: skip

    def _place(self, collection: str) -> str:
        return mongodb.with_database(self._mongo.uri, f"{mongodb.DATABASE}.{collection}")

    @contextmanager
    def _database(self) -> Iterator[Any]:
        with MongoClient[dict[str, Any]](self._mongo.uri) as client:
            yield client.get_default_database()


def middles(copies: Sequence[Copied]) -> list[Copied]:
    """Return of each engine and contender the round with the middle rate, with the spread."""
    found = []
    for on, who in dict.fromkeys((each.on, each.who) for each in copies):
        rounds = sorted(of(copies, on, who), key=lambda each: each.rate)
        middle = rounds[(len(rounds) - 1) // 2]
        spread = (rounds[-1].rate - rounds[0].rate) / middle.rate
        found.append(replace(middle, spread=round(spread, 3) if len(rounds) > 1 else None))
    return found


def ratios(copies: Sequence[Copied]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return our rate over each peer's, as :func:`bench.report.ratios` does, by engine."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    rates = {(each.on, each.who): each.rate for each in middles(copies)}
    for (on, who), rate in rates.items():
        if who != OURS and (on, OURS) in rates:
            by_clients = found.setdefault(f"a copy on {on}", {})
            by_clients.setdefault("1", {})[who] = round(rates[on, OURS] / rate, 3)
    return found


def of(copies: Sequence[Copied], on: str, who: str) -> list[Copied]:
    """Return the rounds of *who* on the engine *on*."""
    return [each for each in copies if (each.on, each.who) == (on, who)]


def verdicts(copies: Sequence[Copied]) -> list[promises.Verdict]:
    """Judge what was copied in memory: the middle of the rounds' ratios."""
    found = []
    for peer, floor in FLOORS.items():
        pairs = zip(of(copies, MEMORY, OURS), of(copies, MEMORY, peer), strict=False)
        each = [ours.rate / its.rate for ours, its in pairs]
        if each:
            ratios = " ".join(f"{ratio:.2f}" for ratio in each)
            what = f"documents a second on {MEMORY}, over {peer}, middle of {ratios}"
            found.append(promises.at_least(what, statistics.median(each), floor))
    return found


def compete(found: Report, copies: Copies, count: int, rounds: int) -> None:
    """Measure all in turns; a copy that fails makes the run invalid, and ends no other."""
    copies.fill(count)
    for _, who in interleaved(WHO, rounds):
        copies.require_time()
        try:
            found.copies.append(copies.measure(who, count))
        except ServerError as error:
            found.invalid(str(error))


def run(found: Report, count: int, rounds: int) -> None:
    """Copy on both engines, and ask the second one for what is missing."""
    end_s = monotonic() + LIMIT_S
    with tempfile.TemporaryDirectory(prefix="gl-") as name:
        folder = Path(name)
        with mongodb.in_memory(ROUND_TRIP_MS) as memory:
            compete(found, Copies(memory, folder, end_s), count, rounds)
        with mongodb.lent(folder) as mongo:
            compete(found, Copies(mongo, folder, end_s), min(count, SLOW_COUNT), 1)
            found.plans += plans.compare(mongo.uri, SOURCE)


def by_engine(copies: Sequence[Copied]) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Return the figures that are drawn, by engine, panel and contender."""
    drawn: dict[str, dict[str, dict[str, float]]] = {}
    for each in middles(copies):
        panels = drawn.setdefault(f"{each.on}: {each.documents:,} documents", {})
        for panel, figure in {
            "documents a second": each.rate,
            "peak memory in MB": each.rss_mb,
            "CPU seconds": each.cpu_s,
        }.items():
            panels.setdefault(panel, {})[each.who] = figure
    return drawn


def main() -> int:
    """Run the bench, print and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.documents", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="products in memory")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="in memory")
    args = parser.parse_args()
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = Report()
    try:
        run(found, max(1, args.count), max(1, args.rounds))
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    print(f"{NOTES}\n")
    status = promises.status(verdicts(found.copies)) or status
    if found.copies:
        picture.copies(by_engine(found.copies), report.RESULTS / "documents.png")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
