"""
Draw what a bench found, one picture a bench, as PNG files.

matplotlib is imported when something is drawn: the tests of the benches do without it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import OURS, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS_COLOURS = ("#0b6e4f", "#3fa37c", "#9bd3bb")
THEIR_COLOURS = ("#555555", "#8c8c8c", "#c4c4c4")
Points = Sequence[tuple[float, float]]
# The lines of a column of a picture: by the panel's title and by name.
Panels = dict[str, dict[str, Points]]


def bars(rows: Sequence[Row], path: Path) -> Path:
    """Draw req/s and p99 of the first work in *rows*, by who and connections."""
    work = rows[0].work
    those = [row for row in rows if row.work == work]
    clients = sorted({row.clients for row in those})
    at_first = {row.who: row.req_s for row in those if row.clients == clients[0]}
    order = sorted(at_first, key=lambda who: at_first[who])
    height = 0.8 / len(clients)
    figure = _figure(13, 7)
    speed, tail = figure.subplots(1, 2, sharey=True)
    for row in those:
        nth = clients.index(row.clients)
        place = order.index(row.who) - (nth - (len(clients) - 1) / 2) * height
        colours = OURS_COLOURS if row.who.startswith("green") else THEIR_COLOURS
        style = {"height": height, "color": colours[nth % len(colours)]}
        speed.barh(place, row.req_s, **style)
        tail.barh(place, row.p99_ms or 0.0, **style)
    speed.set_yticks(range(len(order)), order)
    for label in speed.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == OURS else "normal")
    many = ", ".join(map(str, clients))
    speed.set_title(f"requests a second ({work}; dark to light: {many} connections)")
    tail.set_title("p99 in ms (closed loop)")
    tail.set_xscale("log")
    return _save(figure, path)


def curves(
    goodput: Mapping[str, Sequence[tuple[float, float]]], saturation: float, path: Path
) -> Path:
    """Draw answers a second against what was offered, a line for each name in *goodput*."""
    figure = _figure(9, 6)
    axes = figure.subplots()
    for name, points in goodput.items():
        offered, good = zip(*points, strict=True)
        axes.plot(offered, good, marker="o", label=name)
    highest = max(offered for points in goodput.values() for offered, _ in points)
    axes.plot([0, saturation, highest], [0, saturation, saturation], ":", color="grey",
              label=f"all that can be answered ({saturation:.0f} a second)")  # fmt: skip
    axes.set_xlabel("requests offered a second")
    axes.set_ylabel("answers 200 within a second, a second")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend()
    return _save(figure, path)


def ratios(rows: Sequence[Row], promised: Mapping[tuple[str, int], float], path: Path) -> Path:
    """Draw our req/s over the best peer's for each work and clients, and what is *promised*."""
    figure = _figure(10, 1.5 + 0.3 * len(promised))
    axes = figure.subplots()
    ours = [row for row in rows if row.who == OURS]
    many = sorted({row.clients for row in ours})
    for place, row in enumerate(ours):
        peers = [each for each in rows if each.who != OURS and _cell(each) == _cell(row)]
        best = max(each.req_s for each in peers)
        colour = OURS_COLOURS[many.index(row.clients) % len(OURS_COLOURS)]
        axes.barh(place, row.req_s / best if best else 0.0, color=colour)
        axes.plot([promised[_cell(row)]] * 2, [place - 0.45, place + 0.45], color="black")
    axes.set_yticks(range(len(ours)), [f"{row.work}, {row.clients}" for row in ours])
    axes.invert_yaxis()
    axes.axvline(1.0, color="grey", linestyle=":")
    axes.set_xscale("log")
    ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10)
    axes.set_xlim(ticks[0], ticks[-1])
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_title("our req/s over the best gthread's, by work and clients; a mark: the promise")
    return _save(figure, path)


def copies(figures: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> Path:
    """Draw a row of bars for each engine in *figures*, by panel and by who."""
    panels = list(next(iter(figures.values()), {}))
    figure = _figure(4.5 * len(panels), 3 * len(figures))
    rows = figure.subplots(len(figures), len(panels), squeeze=False)
    for row, (engine, drawn) in zip(rows, figures.items(), strict=True):
        for axes, panel in zip(row, panels, strict=True):
            colours = [OURS_COLOURS[0] if who == OURS else THEIR_COLOURS[1] for who in drawn[panel]]
            axes.barh(list(drawn[panel]), list(drawn[panel].values()), color=colours)
            axes.invert_yaxis()
            axes.set_xlabel(panel)
        row[len(panels) // 2].set_title(engine)
    return _save(figure, path)


def over_time(columns: Mapping[str, Panels], path: Path) -> Path:
    """Draw the panels of each column, one below the other; x is seconds."""
    high = max(map(len, columns.values()))
    figure = _figure(5 * len(columns), 3 * high)
    axes = figure.subplots(high, len(columns), squeeze=False, sharex="col")
    for nth, (title, panels) in enumerate(columns.items()):
        axes[0][nth].set_title(title)
        axes[-1][nth].set_xlabel("seconds")
        for place, (name, lines) in enumerate(panels.items()):
            axes[place][nth].set_ylabel(name)
            for who, points in lines.items():
                colour = OURS_COLOURS[0] if who == OURS else THEIR_COLOURS[1]
                axes[place][nth].plot(*zip(*points, strict=True), color=colour, label=who)
            axes[place][nth].set_ylim(bottom=0)
        if any(len(lines) > 1 for lines in panels.values()):
            axes[0][nth].legend()
    return _save(figure, path)


def _cell(row: Row) -> tuple[str, int]:
    return row.work, row.clients


def _figure(width: float, height: float) -> "Figure":
    # Not by pyplot, which looks for a screen.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _save(figure: "Figure", path: Path) -> Path:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path
