"""
Print a bench's table and write its figures to ``bench/results/NAME.json``.

1. A row is a piece of work, who did it and from how many clients. Its speeds are those of the
   200s alone; what went wrong stands beside them.
2. A ratio is our req/s over a peer's, for the same work and clients; None when the peer
   answered nothing.
3. A run is invalid when a server did not start, bodies differ or errors came where none are
   allowed; the exit status is then 1. It never is for a speed.
4. The machine is described by its size, never by its name or its paths.
"""

import json
import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from bench.hey import Result
from bench.promises import Verdict

CORES = len(os.sched_getaffinity(0))  # before a bench takes one of them
RESULTS = Path(__file__).parent / "results"
OURS = "greenline"


@dataclass(frozen=True)
class Row:
    """One line: hey's figures; *spread* is (most - least) / middle req/s of repeated runs."""

    work: str
    who: str
    clients: int
    answers: dict[str, int]
    seconds: float
    req_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    rss_mb: float | None = None
    spread: float | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def others(self) -> str:
        """Say how many answers were not a 200, by status."""
        return " ".join(f"{each}:{n}" for each, n in self.answers.items() if each != "200")


def row(work: str, who: str, result: Result, rss_mb: float | None = None, **more: Any) -> Row:
    """Make a row of hey's *result*; *more* are the columns of this bench alone."""
    figures = asdict(result)
    del figures["asked"]
    return Row(work=work, who=who, rss_mb=rss_mb, more=more, **figures)


def middle(rows: Sequence[Row]) -> Row:
    """Return the row with the middle req/s of several runs, with how far they lie apart."""
    ordered = sorted(rows, key=lambda each: each.req_s)
    chosen = ordered[(len(ordered) - 1) // 2]
    if len(ordered) == 1:
        return chosen
    speeds = [each.req_s for each in ordered]
    between = statistics.median(speeds)
    spread = round((speeds[-1] - speeds[0]) / between, 3) if between else None
    return replace(chosen, spread=spread)


def paired(ours: Sequence[Row], peer: Sequence[Row]) -> float:
    """Return the middle one of our ratios to *peer* in each round that both have."""
    # Pairs: the machine's own speed changes in seconds.
    pairs = zip(ours, peer, strict=False)
    return statistics.median(a.req_s / b.req_s if b.req_s else float(a.req_s > 0) for a, b in pairs)


def ratios(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return {work: {clients: {peer: our req/s over its}}}; the work names its database."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for ours, its in pairs(rows):
        work = f"{ours.work} on {ours.more['on']}" if "on" in ours.more else ours.work
        peers = found.setdefault(work, {}).setdefault(str(ours.clients), {})
        peers[its.who] = round(ours.req_s / its.req_s, 3) if its.req_s else None
    return found


def pairs(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield our row and a peer's, of the same work, clients and database."""
    for ours in rows:
        for its in rows:
            same = (ours.work, ours.clients, ours.more.get("on")) == (
                its.work, its.clients, its.more.get("on")
            )  # fmt: skip
            if ours.who == OURS and its.who != OURS and same:
                yield ours, its


def machine() -> dict[str, Any]:
    """Describe the machine: cores that may be used, memory, Python and kernel."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": CORES,
        "memory_gb": round(memory / 1024**3, 1),
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def table(rows: Sequence[Row]) -> str:
    """Return *rows* as lines of text with aligned columns."""
    extra = list(dict.fromkeys(name for each in rows for name in each.more))
    names = ["work", "who", "clients", "200", "others", "seconds", "req/s"]
    names += ["p50 ms", "p99 ms", "p99.9 ms", "rss MB", "spread", *extra]
    lines = [names]
    for each in rows:
        figures = [each.work, each.who, each.clients, each.answers.get("200", 0)]
        figures += [each.others(), f"{each.seconds:.2f}", f"{each.req_s:.1f}"]
        figures += [each.p50_ms, each.p99_ms, each.p999_ms, each.rss_mb, each.spread]
        figures += [each.more.get(name) for name in extra]
        lines.append(["" if figure is None else str(figure) for figure in figures])
    return aligned(lines, names=2)


def ratio_table(found: dict[str, dict[str, dict[str, float | None]]]) -> str:
    """Return :func:`ratios` as lines of text: our req/s over each peer's."""
    peers = list(
        dict.fromkeys(who for work in found.values() for at in work.values() for who in at)
    )
    lines = [["our req/s over", "clients", *peers]]
    for work, by_clients in found.items():
        for clients, its in by_clients.items():
            figures = [its.get(who) for who in peers]
            cells = ["" if figure is None else f"{figure:.2f}" for figure in figures]
            lines.append([work, clients, *cells])
    return aligned(lines, names=1)


def aligned(lines: Sequence[Sequence[str]], names: int) -> str:
    """Return *lines* with columns of one width, the first *names* of them to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < names else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


class Report:
    """The rows of the bench *name*, and what made its run invalid."""

    def __init__(self, name: str, folder: Path = RESULTS) -> None:
        self.name = name
        self.rows: list[Row] = []
        self.problems: list[str] = []
        self.verdicts: list[Verdict] = []  # on ratios, for the page
        self._folder = folder

    def add(self, each: Row) -> None:
        """Keep a row."""
        self.rows.append(each)

    def invalid(self, problem: str) -> None:
        """Keep a reason why this run does not count."""
        self.problems.append(problem)

    def finish(self) -> int:
        """Print the table, write the JSON, and return the exit status."""
        self._folder.mkdir(parents=True, exist_ok=True)
        figures = {
            **self.figures(),
            "machine": machine(),
            "date": date.today().isoformat(),
            "problems": self.problems,
            "verdicts": [each.text for each in self.verdicts],
        }
        text = json.dumps(figures, indent=2) + "\n"
        (self._folder / f"{self.name}.json").write_text(text)
        print(self.table())
        for problem in self.problems:
            print(f"INVALID: {problem}")
        return 1 if self.problems else 0

    def figures(self) -> dict[str, Any]:
        """Return what the JSON has of this bench alone."""
        return {"rows": [self._flat(each) for each in self.rows], "ratios": ratios(self.rows)}

    def table(self) -> str:
        """Return the table that is printed."""
        return table(self.rows)

    @staticmethod
    def _flat(each: Row) -> dict[str, Any]:
        figures = asdict(each)
        more = figures.pop("more")
        return {**figures, **more}
