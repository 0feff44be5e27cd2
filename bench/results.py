"""
Write the results of the benches into ``docs/benchmarks.md`` and ``docs/migrate.md``.

Text of a page between ``<!-- results: NAME -->`` and ``<!-- end -->`` is replaced by what
``bench/results/NAME.json`` has: the table of the bench or its verdicts if it keeps some, else our
throughput over that of each peer; the size of the machine, the day, and the picture. A block stays
as it is if its bench has no results or its run was invalid.

    python -m bench.results
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.report import RESULTS

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
PAGES = (PAGE, DOCS / "migrate.md")
BLOCK = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Page:
    """
    A page that has figures of the benches.

    :param path: the page, whose pictures are in ``pictures`` beside it. Default: the one in docs.
    :param results: the folder of the benches' JSON files and pictures. Default: bench/results.
    """

    def __init__(self, path: Path = PAGE, results: Path = RESULTS) -> None:
        self._path = path
        self._results = results

    def write(self) -> list[str]:
        """
        Replace the blocks that have valid results.

        :returns: a line for each block with what was done.
        """
        done: list[str] = []

        def replaced(found: "re.Match[str]") -> str:
            begin, name, end = found.groups()
            file = self._results / f"{name}.json"
            if not file.exists():
                done.append(f"{name}: not measured here, left as it was")
                return found[0]
            figures = json.loads(file.read_text())
            if figures["problems"]:
                done.append(f"{name}: left as it was, invalid: {figures['problems'][0]}")
                return found[0]
            done.append(f"{name}: written")
            return f"{begin}{self._block(name, figures)}\n{end}"

        self._path.write_text(BLOCK.sub(replaced, self._path.read_text()))
        return done

    def _block(self, name: str, figures: Mapping[str, Any]) -> str:
        machine = figures["machine"]
        parts = [
            f"{figures['date']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB, "
            f"Python {machine['python']}:",
        ]
        if markdown := figures.get("table"):
            parts.append(markdown)
        elif verdicts := figures.get("verdicts"):
            parts.append("\n".join(f"- {text}" for text in verdicts))
        else:
            parts.append("\n".join(table(figures["ratios"])))
        drawn = self._results / f"{name}.png"
        if drawn.exists():
            pictures = self._path.parent / "pictures"
            pictures.mkdir(exist_ok=True)
            shutil.copy(drawn, pictures)
            parts.append(f"![{name}](pictures/{name}.png)")
        return "\n\n".join(parts)


def table(ratios: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> Iterator[str]:
    """
    Yield the lines of a Markdown table of :func:`bench.report.ratios`.

    :param ratios: our throughput over a peer's by work, clients and peer; None: it gave no answer.
    """
    rows = [(work, at, its) for work, by in ratios.items() for at, its in by.items()]
    peers = list(dict.fromkeys(peer for _, _, its in rows for peer in its))
    yield f"| our throughput over | clients | {' | '.join(peers)} |"
    yield "|---|---|" + "---|" * len(peers)
    for work, clients, its in rows:
        cells = ("" if its.get(peer) is None else f"{its[peer]:.2f}" for peer in peers)
        yield f"| {work} | {clients} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(line for page in PAGES for line in Page(page).write()), file=sys.stderr)
