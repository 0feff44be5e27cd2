"""
COPY beside another greenlet: psycopg2's own, which blocks it, and ours, compiled and by ctypes.

1. All copy ROWS rows of about 100 bytes in one process, into an unlogged table and out of it, from
   and to each kind of file. Rounds are interleaved; a ratio is the middle of those over the
   blocking one of the same round.
2. Meanwhile a greenlet sleeps TICK_S again and again. ``p99 ms`` is how late it goes on, in all
   rounds of a row; ``idle p99 ms`` is the same beside nothing, which is late on a busy machine too.
3. The run is invalid when a COPY fails or reports another number of rows, or without the compiled
   part. The exit status is 1 then, and when a ratio or a p99 misses what is required.

    python -m bench.copy [--rows 1000000] [--rounds 5] [--quick]
"""

import argparse
import io
import math
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, perf_counter, process_time
from typing import Any

import gevent
import psycopg2
from psycopg2.extensions import get_wait_callback, set_wait_callback

from bench import promises, report
from bench.failures import FAILURES
from bench.report import OURS
from bench.rounds import interleaved
from bench.servers import ServerError
from embedded.postgres import temporary
from greenline import patch
from greenline.postgres import copying

ROWS, QUICK_ROWS, ROUNDS, QUICK_ROUNDS = 1_000_000, 100_000, 5, 1
TICK_S, IDLE_S = 0.005, 1.0
BLOCKING, WITHOUT = "blocking", "greenline, not compiled"
WHO = (BLOCKING, OURS, WITHOUT)
IN, OUT = "in", "out"
MIN_RATIO, MIN_OUT_WITHOUT, MAX_LATE_MS = 0.75, 0.2, 20.0
FLOORS = {(IN, OURS): MIN_RATIO, (OUT, OURS): MIN_RATIO,
          (IN, WITHOUT): MIN_RATIO, (OUT, WITHOUT): MIN_OUT_WITHOUT}  # fmt: skip
FILES = ("StringIO", "BytesIO", "file")
TABLE = "create unlogged table copied (number int, body text)"
ROW = "{}\t" + "abcdefghij " * 8 + "\n"
SQL = {IN: "copy copied from stdin", OUT: "copy copied to stdout"}
NOTES = f"""
"{BLOCKING}": psycopg2 without a wait callback, which keeps all greenlets waiting
"{WITHOUT}": as where there is no C compiler; rows/s: of the middle round"""


@dataclass(frozen=True)
class Copied:
    """One COPY of *rows* by *who*, and how late the bystander was each time."""

    way: str
    file: str
    who: str
    rows: int
    seconds: float
    cpu_s: float
    late_ms: Sequence[float]


class Report(report.Report):
    """The copies of all rounds."""

    def __init__(self, folder: Path = report.RESULTS) -> None:
        super().__init__("copy", folder)
        self.copies: list[Copied] = []
        self.idle_ms: list[float] = []

    def figures(self) -> dict[str, Any]:
        each = [{**asdict(one), "late_ms": p99(one.late_ms)} for one in self.copies]
        return {"copies": each, "idle_p99_ms": p99(self.idle_ms)}

    def table(self) -> str:
        lines = [["copy", "file", "who", "seconds", "cpu s", "rows/s", "ratio", "p99 ms"]]
        for way, file, who in dict.fromkeys((one.way, one.file, one.who) for one in self.copies):
            mine = of(self.copies, way, file, who)
            seconds = statistics.median(one.seconds for one in mine)
            cpu_s = statistics.median(one.cpu_s for one in mine)
            figures = [way, file, who, f"{seconds:.2f}", f"{cpu_s:.2f}"]
            figures += [f"{mine[0].rows / seconds:,.0f}"]
            figures += [f"{ratio(self.copies, way, file, who):.2f}", f"{p99(late_ms(mine)):.1f}"]
            lines.append(figures)
        idle = f"idle p99 ms: {p99(self.idle_ms):.1f}"
        return f"{report.aligned(lines, names=3)}\n{idle}"


def p99(values: Sequence[float]) -> float:
    """Return the smallest value that 99 % of *values* do not exceed, 0 of none."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * 0.99) - 1] if ordered else 0.0


def of(copies: Sequence[Copied], way: str, file: str, who: str) -> list[Copied]:
    """Return the rounds of *who*."""
    return [each for each in copies if (each.way, each.file, each.who) == (way, file, who)]


def late_ms(copies: Sequence[Copied]) -> list[float]:
    """Return how late the bystander was in all *copies*."""
    return [each for one in copies for each in one.late_ms]


def ratio(copies: Sequence[Copied], way: str, file: str, who: str) -> float:
    """Return the middle of the rounds' ratios of rows a second, over the blocking ones."""
    pairs = zip(of(copies, way, file, BLOCKING), of(copies, way, file, who), strict=False)
    return statistics.median(blocking.seconds / mine.seconds for blocking, mine in pairs)


@contextmanager
def watched() -> Iterator[list[float]]:
    """Run the bystander in a ``with`` block; give how late it was each time, in ms."""
    late: list[float] = []
    is_over = False

    def stand_by() -> None:
        while not is_over:
            due_s = monotonic() + TICK_S
            gevent.sleep(TICK_S)
            late.append((monotonic() - due_s) * 1000)

    bystander = gevent.spawn(stand_by)
    gevent.sleep(0)  # it has begun
    try:
        yield late
    finally:
        is_over = True
        bystander.join()  # it notes how late it is the last time


@contextmanager
def as_who(who: str) -> Iterator[None]:
    """Copy as *who* does in a ``with`` block."""
    callback, read_rows = get_wait_callback(), copying.read_rows
    if who == BLOCKING:
        set_wait_callback(None)
    copying.read_rows = copying.rows_by_ctypes if who == WITHOUT else read_rows
    try:
        yield
    finally:
        set_wait_callback(callback)
        copying.read_rows = read_rows


def make_table(url: str) -> None:
    """Make the table that all copy into and out of."""
    with closing(psycopg2.connect(url)) as conn, conn, conn.cursor() as cursor:
        cursor.execute(TABLE)


class Copies:
    """Copies of the same *rows* rows in the database *url*, with files in *folder*."""

    def __init__(self, url: str, folder: Path, rows: int) -> None:
        self._url = url
        self._rows = rows
        self._text = "".join(ROW.format(number) for number in range(rows))
        self._source, self._sink = folder / "source", folder / "sink"
        self._source.write_text(self._text)

    def measure(self, way: str, file: str, who: str) -> Copied:
        """
        Copy once.

        :raises ServerError: another number of rows was reported.
        """
        with as_who(who), closing(psycopg2.connect(self._url)) as conn, conn.cursor() as cursor:
            conn.autocommit = True
            if way == IN:
                cursor.execute("truncate copied")
            with self._opened(way, file)() as opened, watched() as late:
                begin_s, begin_cpu_s = perf_counter(), process_time()
                cursor.copy_expert(SQL[way], opened)
                seconds, cpu_s = perf_counter() - begin_s, process_time() - begin_cpu_s
            if cursor.rowcount != self._rows:
                raise ServerError(f"{who} has copied {cursor.rowcount} of {self._rows} rows {way}")
        return Copied(way, file, who, self._rows, seconds, cpu_s, late)

    def _opened(self, way: str, file: str) -> Callable[[], Any]:
        if file == "file":
            return self._source.open if way == IN else lambda: self._sink.open("w")
        if file == "BytesIO":
            return lambda: io.BytesIO(self._text.encode() if way == IN else b"")
        return lambda: io.StringIO(self._text if way == IN else "")


def run(found: Report, url: str, folder: Path, rows: int, rounds: int) -> list[promises.Verdict]:
    """Measure all in turns, and judge."""
    patch.hook_psycopg2()
    if copying.compiled_rows is None:
        found.invalid("there is no compiled part: is there a C compiler?")
        return []
    make_table(url)
    copies = Copies(url, folder, rows)
    copies.measure(IN, FILES[0], BLOCKING)  # the server's files are made
    for way in (IN, OUT):
        for file in FILES:
            print(f"{way}, {file}", file=sys.stderr, flush=True)
            for _, who in interleaved(WHO, rounds):
                found.copies.append(copies.measure(way, file, who))
            with watched() as late:
                gevent.sleep(IDLE_S)
            found.idle_ms += late
    return verdicts(found)


def verdicts(found: Report) -> list[promises.Verdict]:
    """Judge the ratios, and the p99 unless the machine is so busy that nothing is in time."""
    judged = []
    idle_ms = p99(found.idle_ms)
    doubt = f"beside nothing it is {idle_ms:.1f}" if idle_ms > MAX_LATE_MS / 2 else None
    for way, file, who in dict.fromkeys((one.way, one.file, one.who) for one in found.copies):
        if who == BLOCKING:
            continue
        what = f"COPY {way}, {file}, {who}"
        reached = ratio(found.copies, way, file, who)
        judged.append(promises.at_least(f"{what}, over psycopg2's", reached, FLOORS[way, who]))
        late = p99(late_ms(of(found.copies, way, file, who)))
        judged.append(promises.at_most(f"{what}, bystander's p99 ms", late, MAX_LATE_MS, doubt))
    return judged


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options in *arguments*."""
    parser = argparse.ArgumentParser(prog="python -m bench.copy", description=__doc__)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=None)
    quick = f"{QUICK_ROWS:,} rows, {QUICK_ROUNDS} round"
    parser.add_argument("--quick", action="store_true", help=quick)
    options = parser.parse_args(arguments)
    options.rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    return options


def main() -> int:
    """Run the bench, print and write what came of it."""
    options = parsed()
    # A server has a session of its own: only an orderly end takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    found = Report()
    try:
        with temporary() as server, tempfile.TemporaryDirectory(prefix="gl-") as folder:
            found.verdicts = run(found, server.url, Path(folder), options.rows, options.rounds)
    except FAILURES as error:
        found.invalid(str(error))
    status = found.finish()
    print(f"{NOTES}\n")
    return promises.status(found.verdicts) or status


if __name__ == "__main__":
    raise SystemExit(main())
