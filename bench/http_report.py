"""What ``bench.http`` found: the rows, the ratios of the rounds, and the tables of the page."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.http_lineup import RIVAL, lineup
from bench.http_shapes import SHAPES, SMALL
from bench.report import OURS, RESULTS, Row


class Http(report.Report):
    """
    The report of the bench.

    :param name: the file of the results, str.
    :param folder: where it is written. Default: that of all benches.
    """

    def __init__(self, name: str, folder: Path = RESULTS) -> None:
        super().__init__(name, folder)
        self.ratios: dict[str, dict[str, dict[str, float | None]]] = {}
        # Our p99 over the rival's at the same rate, by work and connections.
        self.p99: dict[tuple[str, int], float] = {}
        self.notes: list[str] = []  # in Markdown, below the tables

    def keep(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Keep the middle of the *rows* of each server, and our ratio to each of the others."""
        for who, each in rows.items():
            row = report.middle(each)
            self.add(row)
            if who != OURS:
                at = self.ratios.setdefault(row.work, {}).setdefault(str(row.clients), {})
                # The middle one of the rounds' ratios, which is not that of the middle rows.
                at[who] = round(report.paired(rows[OURS], each), 3) if row.req_s else None

    def figures(self) -> dict[str, Any]:
        """Return the rows, the ratios, and the tables."""
        return {**super().figures(), "ratios": self.ratios, "table": self.markdown()}

    def markdown(self) -> str:
        """Return the tables and notes of the page."""
        small = {peer.who for peer in lineup() if peer.is_small_only}
        shapes = {shape.name for shape in SHAPES}
        everywhere = [row for row in self.rows if row.work in shapes and row.who not in small]
        first = [row for row in self.rows if row.work == SMALL.name and row.who in {OURS, *small}]
        plain = [row for row in self.rows if row.work in self.ratios.keys() - shapes]
        # In a run of parts some are empty.
        tables = [self._table(rows) for rows in (everywhere, first, plain) if rows]
        return "\n\n".join([*tables, *self.notes])

    def _table(self, rows: Collection[Row]) -> str:
        """Return a table of *rows* with a column for each server."""
        columns = list(dict.fromkeys(row.who for row in rows))
        cells = {(row.work, row.clients, row.who): self._cell(row) for row in rows}
        works = list(dict.fromkeys((row.work, row.clients) for row in rows))
        has_p99 = RIVAL in columns and any(work in self.p99 for work in works)
        head = ["requests a second (ours over theirs)", "clients", *columns]
        lines = [[*head, f"p99 over {RIVAL}"] if has_p99 else head]
        lines.append(["---"] * len(lines[0]))
        for work, clients in works:
            line = [work, f"{clients:,}", *(cells.get((work, clients, who), "") for who in columns)]
            if has_p99:
                ratio = self.p99.get((work, clients))
                line.append("" if ratio is None else f"{ratio:.2f}")
            lines.append(line)
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _cell(self, row: Row) -> str:
        speed = f"{row.req_s / 1000:.1f}k" if row.req_s >= 1000 else f"{row.req_s:.0f}"
        if row.who == OURS:
            return speed
        ratio = self.ratios[row.work][str(row.clients)][row.who]
        return speed if ratio is None else f"{speed} ({ratio:.2f})"
