"""
Draw the figures of one result, or of two beside each other with the same axes, as SVG.

Each function returns the text of one ``<svg>`` element, empty if no result has the figures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from greenline.tune import usl
from greenline.tune.results import Fit, Result, SettingName, Shares, Step, Sweep, SweepName

GREEN, BLUE, ORANGE, RED, GREY = "#0b6e4f", "#3366aa", "#d2722a", "#b03030", "#777777"
# What a recommendation for the sweep is named.
RECOMMENDED: Mapping[SweepName, SettingName] = {
    "pool": "pool",
    "workers": "workers",
    "limit": "max_in_progress",
}
# In the order of a request, with a colour each.
PARTS = {
    "queued_s": ("queued", RED),
    "pool_s": ("waits for the pool", "#c2a83e"),
    "connecting_s": ("connects", ORANGE),
    "postgres_s": ("Postgres", BLUE),
    "mongodb_s": ("MongoDB", "#6aa84f"),
    "application_s": ("application", GREEN),
    "writing_s": ("writes", "#9b7bb8"),
    "hub_s": ("waits for the hub", GREY),
}
LOADS = (0.5, 1.0, 1.5)
# Of the times of the knee's rate, how far a step may be from the one that it stands for.
NEAR = 0.25
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text, to be searched and read aloud
    "text.parse_math": False,  # a name may have a dollar sign
}
METADATA: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def rate(results: Sequence[Result]) -> str:
    """Draw the throughput and the latencies against the offered rate, with the knee."""

    def draw(result: Result, steps: list[Step], speed: Axes, late: Axes) -> None:
        offered = [step.offered_rate for step in steps]
        highest = max(offered)
        speed.plot([0, highest], [0, highest], ":", color=GREY, label="offered")
        _rounds(speed, offered, steps)
        speed.set_ylabel("answers a second")
        for name, colour in (("p50_s", GREEN), ("p99_s", ORANGE), ("p999_s", RED)):
            known = [
                (step.offered_rate, 1_000 * value)
                for step in steps
                if (value := getattr(step.latencies, name)) is not None
            ]
            if known:
                label = {"p50_s": "p50", "p99_s": "p99", "p999_s": "p99.9"}[name]
                late.plot(*zip(*known, strict=True), marker="o", ms=4, color=colour, label=label)
        late.axhline(1_000 * result.objective.p99_s, ls=":", color=ORANGE, label="objective of p99")
        late.set_yscale("log")
        late.yaxis.set_major_formatter("{x:g}")
        late.set_ylabel("latency in ms")
        late.set_xlabel("requests offered a second")
        if knee := _of(result, "rate").knee(result.objective):
            for axes in (speed, late):
                axes.axvline(knee.offered_rate, ls="--", color="black", label="knee")
        for axes in (speed, late):
            axes.legend(fontsize=8)

    return _drawn("rate", "rate", results, draw, rows=2)


def scaling(results: Sequence[Result], name: SweepName) -> str:
    """Draw the throughput against what the sweep *name* varies, with its fit if there is one."""

    def draw(result: Result, steps: list[Step], axes: Axes) -> None:
        _rounds(axes, [step.setting for step in steps], steps)
        fits = [fit for fit in result.fits if fit.of == name and fit.gamma is not None]
        for fit in fits:
            _curve(axes, fit, max(step.setting for step in steps))
        recommended = result.recommended(RECOMMENDED[name])
        if recommended is not None:
            label = f"recommended: {recommended.value:g}"
            axes.axvline(recommended.value, ls="--", color="black", label=label)
        axes.set_xlabel(_of(result, name).unit)
        axes.set_ylabel("answers a second")
        axes.legend(fontsize=8)

    return _drawn(name, name, results, draw)


def idle(results: Sequence[Result]) -> str:
    """Draw the memory of a worker against its idle sockets."""

    def draw(result: Result, steps: list[Step], axes: Axes) -> None:
        settings, memory = zip(*((step.setting, step.memory_mib) for step in steps), strict=True)
        axes.plot(settings, memory, marker="o", color=GREEN)
        axes.set_xlabel(_of(result, "idle").unit)
        axes.set_ylabel("memory of a worker in MiB")

    return _drawn("idle", "idle", results, draw)


def shares(results: Sequence[Result]) -> str:
    """Draw where the time of a request goes, below, at and above the knee."""
    if not any(at_loads(result) for result in results):
        return ""

    def draw(result: Result, _: list[Step], axes: Axes) -> None:
        found = at_loads(result)
        if not found:
            _say_nothing(axes)
            return
        totals = [sum(getattr(shares, field) for field in PARTS) for _, _, shares in found]
        names = [
            f"{times:.2g} x: {step.offered_rate:.0f}/s, {1_000 * total:.3g} ms"
            for (times, step, _), total in zip(found, totals, strict=True)
        ]
        left = [0.0] * len(found)
        for field, (part, colour) in PARTS.items():
            widths = [
                100 * getattr(shares, field) / total if total else 0.0
                for (_, _, shares), total in zip(found, totals, strict=True)
            ]
            axes.barh(names, widths, left=left, color=colour, label=part)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlabel("part of a request's time in %")
        axes.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.22))

    return _drawn("shares", "rate", results, draw, sharey=False)


def verification(results: Sequence[Result]) -> str:
    """Draw what was predicted, what was measured, and what gunicorn's defaults do."""
    if all(result.verification is None for result in results):
        return ""

    def draw(result: Result, _: list[Step], axes: Axes) -> None:
        verified = result.verification
        if verified is None:
            _say_nothing(axes)
            return
        axes.bar("predicted", verified.predicted_rate, color=GREY)
        noise = (verified.spread or 0.0) * verified.measured_rate / 2
        name = "measured" if verified.met else "missed"
        axes.bar(name, verified.measured_rate, yerr=noise, color=GREEN, capsize=4)
        for name, step, colour in (
            ("recommended,\nside by side", verified.ours, GREEN),
            ("documentation's\nnumbers", verified.against_defaults, ORANGE),
        ):
            if step is not None:
                axes.bar(name, step.good_rate, yerr=_error([step]), color=colour, capsize=4)
        axes.set_ylabel("answers a second\nwithin the objective")

    return _drawn("verification", None, results, draw)


def at_loads(result: Result) -> list[tuple[float, Step, Shares]]:
    """
    Return the steps nearest to 0.5, 1 and 1.5 times the rate of the knee.

    :returns: how many times the rate of the knee it is, the step, and its shares.
    """
    sweep = result.sweep("rate")
    knee = sweep and sweep.knee(result.objective)
    if not sweep or not knee:
        return []
    found = {}
    for load in LOADS:
        wanted = load * knee.offered_rate
        step = min(sweep.steps, key=lambda step: abs(step.offered_rate - wanted))
        times = step.offered_rate / knee.offered_rate
        if step.shares is not None and abs(times - load) <= NEAR:
            found[step.offered_rate] = (times, step, step.shares)
    return list(found.values())


def _drawn(
    name: str,
    of: SweepName | None,
    results: Sequence[Result],
    draw: Callable[..., None],
    *,
    rows: int = 1,
    sharey: bool = True,
) -> str:
    """
    Return a column of *rows* pictures for each result; empty if none has the sweep.

    :param name: of the picture, str.
    :param of: the sweep whose steps are drawn, str; None: none.
    :param results: one or two.
    :param draw: draws a column: its result, its sorted steps and its axes.
    :param rows: int, default 1.
    :param sharey: whether the columns have one scale, bool, default True.
    """
    found = [result.sweep(of) if of else None for result in results]
    if of and not any(sweep and sweep.steps for sweep in found):
        return ""
    with _figure(name, len(results), rows) as (figure, out):
        columns = figure.subplots(
            rows, len(results), squeeze=False, sharex=True, sharey="row" if sharey else False
        ).T
        for letter, result, sweep, column in zip("AB", results, found, columns, strict=False):
            if len(results) > 1:
                column[0].set_title(letter)
            steps = sorted(sweep.steps, key=lambda step: step.setting) if sweep else []
            if of and not steps:
                for axes in column:
                    _say_nothing(axes)
            else:
                draw(result, steps, *column)
        # At last: it fixes the scale that the columns share.
        for axes in columns.flat:
            if axes.get_yscale() == "linear" and not axes.yaxis_inverted():
                axes.set_ylim(bottom=0)
    text = out.getvalue()
    return text[text.index("<svg") :]  # without the head of a file of its own


def _say_nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes)


@contextmanager
def _figure(name: str, columns: int, rows: int) -> Iterator[tuple[Figure, StringIO]]:
    out = StringIO()
    # With the salt the identifiers of two pictures in one page differ, and a page is the same each
    # time that it is made.
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(7.5 if columns == 1 else 5.5 * columns, 3.2 * rows))
        figure.set_layout_engine("constrained")
        FigureCanvasSVG(figure)
        yield figure, out
        figure.savefig(out, format="svg", metadata=METADATA)


def _of(result: Result, name: SweepName) -> Sweep:
    """Return the sweep, which is there."""
    return next(sweep for sweep in result.sweeps if sweep.name == name)


def _rounds(axes: Axes, settings: Sequence[float], steps: Sequence[Step]) -> None:
    """Draw all answers of each step, and those within the objective with the range of rounds."""
    answered = [step.answered_rate for step in steps]
    axes.plot(settings, answered, marker=".", color=GREY, lw=1, label="answered")
    axes.errorbar(
        settings, [step.good_rate for step in steps], yerr=_error(steps), marker="o", ms=4,
        capsize=4, color=GREEN, label="within the objective",
    )  # fmt: skip


def _error(steps: Sequence[Step]) -> Any:
    """Return how far the rounds of each step are below and above its good rate."""
    below = [max(step.good_rate - min(step.rounds or [step.good_rate]), 0.0) for step in steps]
    above = [max(max(step.rounds or [step.good_rate]) - step.good_rate, 0.0) for step in steps]
    return [below, above]


def _curve(axes: Axes, fit: Fit, largest: float) -> None:
    """Draw *fit* as far as it was measured, and dashed to twice that if it may be used there."""
    points = 60
    near = [1 + (largest - 1) * nth / points for nth in range(points + 1)]
    label = "fitted (USL)" if fit.is_usable else "fitted (USL), no use for a prediction"
    axes.plot(near, [_rate(fit, n) for n in near], color=BLUE, label=label)
    if fit.is_usable:
        far = [largest * (1 + nth / points) for nth in range(points + 1)]
        axes.plot(far, [_rate(fit, n) for n in far], "--", color=BLUE, label="predicted")


def _rate(fit: Fit, number: float) -> float:
    return float(usl.rate(number, fit.sigma or 0.0, fit.kappa or 0.0, fit.gamma or 0.0))
