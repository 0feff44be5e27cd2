"""
Write a result, or two beside each other, as one HTML file that loads nothing from elsewhere.

Every picture has its figures in a table below it.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from greenline.tune import pictures
from greenline.tune.results import Recommendation, Result, Step, SweepName
from greenline.tune.search import ENOUGH

UNKNOWN = "-"
STEP_HEAD = (
    "offered/s", "answered/s", "within the objective/s", "spread of rounds", "errors", "p50", "p99",
    "p99.9", "samples", "CPUs of workers", "MiB a worker", "connections", "rounds/s", "seconds",
    "limit",
)  # fmt: skip


class Table(NamedTuple):
    """
    The figures of one result below a picture.

    :param head: of the columns.
    :param rows: the cells of each row.
    :param notes: sentences about it.
    """

    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


class Section(NamedTuple):
    """
    A picture with its tables.

    :param name: its anchor, str.
    :param title: str.
    :param text: what the picture shows, str.
    :param picture: an ``<svg>`` element, str; empty if it was not measured.
    :param tables: one for each result.
    """

    name: str
    title: str
    text: str
    picture: str
    tables: Sequence[Table]


class Difference(NamedTuple):
    """
    A figure of two results.

    :param name: what it is, str.
    :param before: of the first, str.
    :param after: of the second, str.
    :param change: str; says where it is no larger than the noise.
    """

    name: str
    before: str
    after: str
    change: str


def write(result: Result, path: Path) -> None:
    """Write the report of *result* to *path*."""
    _write([result], [], path)


def compare(before: Result, after: Result, path: Path) -> None:
    """Write the reports of two results beside each other, and what has changed, to *path*."""
    _write([before, after], list(_differences(before, after)), path)


def _write(results: Sequence[Result], differences: Sequence[Difference], path: Path) -> None:
    environment = Environment(
        loader=PackageLoader("greenline.tune", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(
        results=results,
        sections=list(_sections(results)),
        differences=differences,
        letters="AB" if len(results) > 1 else " ",
        duration=_duration,
        percent=_percent,
    )
    path.write_text(page, encoding="utf-8")


def _sections(results: Sequence[Result]) -> Iterator[Section]:
    def section(
        name: str, title: str, text: str, picture: str, table: Callable[[Result], Table]
    ) -> Section:
        return Section(name, title, text, picture, [table(result) for result in results])

    yield section(
        "rate", "Throughput and latency",
        "The knee is the highest rate up to which the objective holds.",
        pictures.rate(results), _rates,
    )  # fmt: skip
    yield section(
        "shares", "Where the time of a request goes",
        "At about 0.5, 1 and 1.5 times the rate of the knee, with the mean of a request.",
        pictures.shares(results), _shares,
    )  # fmt: skip
    names: list[tuple[SweepName, str, str]] = [
        ("pool", "The pool", "The smallest pool that gives 95 % of the best throughput is enough."),
        ("workers", "Workers", "The fitted curve is dashed where it was not measured."),
        ("limit", "Requests in progress", "Of one worker, as GREENLINE_MAX_IN_PROGRESS limits it."),
    ]
    for name, title, text in names:
        picture = pictures.scaling(results, name)
        yield section(name, title, text, picture, lambda result, name=name: _steps(result, name))  # type: ignore[misc]
    yield section(
        "idle", "Idle connections", "What each idle socket costs in memory.",
        pictures.idle(results), lambda result: _steps(result, "idle"),
    )  # fmt: skip
    yield section(
        "verification", "Predicted and measured",
        "The recommended settings under the same load, and the numbers of gunicorn's documentation "
        "beside them in one run, each at the rate with the most good answers.",
        pictures.verification(results), _verified,
    )  # fmt: skip


def _rates(result: Result) -> Table:
    table = _steps(result, "rate")
    sweep = result.sweep("rate")
    if sweep is None or not table.rows:
        return table
    knee = sweep.knee(result.objective)
    if knee is None:
        note = "There is no knee: the first step breaks the objective."
    else:
        note = (
            f"The knee is at {knee.offered_rate:.0f} requests a second, with a p99 of "
            f"{_duration(knee.latencies.p99_s)}."
        )
    return table._replace(notes=(note, *table.notes))


def _steps(result: Result, name: SweepName) -> Table:
    sweep = result.sweep(name)
    if sweep is None or not sweep.steps:
        return Table()
    steps = sorted(sweep.steps, key=lambda step: step.setting)
    notes = [] if sweep.interleaved else ["The steps were taken one after the other."]
    if any(step.generator_limited for step in steps):
        notes.append("Where the limit is the generator, the service was not at its limit.")
    for fit in result.fits:
        if fit.of == name and fit.gamma is not None:
            notes.append(
                f"Universal Scalability Law: gamma {fit.gamma:.4g}, sigma {fit.sigma:.3g}, "
                f"kappa {fit.kappa:.3g}; R² {fit.r_squared:.3f} of {fit.points} points."
            )
        if fit.of == name and fit.note:
            notes.append(f"Not extrapolated: {fit.note}.")
    if name == "rate":  # its setting is the offered rate
        return Table(STEP_HEAD, [_row(each) for each in steps], notes)
    rows = [[f"{each.setting:g}", *_row(each)] for each in steps]
    return Table([sweep.unit, *STEP_HEAD], rows, notes)


def _row(step: Step) -> list[str]:
    late = step.latencies
    return [
        f"{step.offered_rate:.1f}", f"{step.answered_rate:.1f}", f"{step.good_rate:.1f}",
        _percent(step.spread), _percent(step.errors), _duration(late.p50_s), _duration(late.p99_s),
        _duration(late.p999_s), str(late.samples),
        f"{step.cpu_of_workers:.2f}" if step.is_seen else UNKNOWN,
        f"{step.memory_mib:.1f}" if step.is_seen else UNKNOWN,
        str(step.connections) if step.is_seen or step.connections else UNKNOWN,
        ", ".join(f"{rate:.1f}" for rate in step.rounds), f"{step.seconds:.0f}",
        "generator" if step.generator_limited else "service",
    ]  # fmt: skip


def _shares(result: Result) -> Table:
    found = pictures.at_loads(result)
    if not found:
        return Table()
    head = ["times the knee", "offered/s", *(part for part, _ in pictures.PARTS.values())]
    rows = [
        [f"{times:.2f}", f"{step.offered_rate:.1f}",
         *(_duration(getattr(shares, field)) for field in pictures.PARTS)]
        for times, step, shares in found
    ]  # fmt: skip
    return Table(head, rows)


def _verified(result: Result) -> Table:
    verified = result.verification
    if verified is None:
        return Table()
    sides = [("recommended", verified.ours), ("documentation's", verified.against_defaults)]
    rows = [[name, *_row(step)] for name, step in sides if step is not None]
    note = (
        f"Predicted {verified.predicted_rate:.1f}/s, measured {verified.measured_rate:.1f}/s with "
        f"a spread of {_percent(verified.spread)}: {verified.within:+.1%}."
        f"{'' if verified.met else ' The objective was missed.'}"
    )
    return Table(["settings", *STEP_HEAD], rows, [note])


def _differences(before: Result, after: Result) -> Iterator[Difference]:
    for name, old_text, new_text in zip(
        ("load", "objective", "cores"), _conditions(before), _conditions(after), strict=True
    ):
        if old_text != new_text:
            yield Difference(name, old_text, new_text, "not the same: the figures do not compare")
    knees = [
        sweep.knee(result.objective) if (sweep := result.sweep("rate")) else None
        for result in (before, after)
    ]
    first, second = knees
    if first and second:
        yield _difference(
            "rate of the knee", first.good_rate, second.good_rate, lambda one: f"{one:.1f}/s",
            # The search ends where two rates are no nearer than that.
            max(ENOUGH, first.spread or 0.0, second.spread or 0.0),
        )  # fmt: skip
        # Its noise is not known: the spread is that of a rate.
        earlier, later = (_duration(one.latencies.p99_s) for one in (first, second))
        yield Difference("p99 at the knee", earlier, later, UNKNOWN)
        yield _difference(
            "memory of a worker at the knee", first.memory_mib or None, second.memory_mib or None,
            lambda one: f"{one:.1f} MiB",
        )  # fmt: skip
        yield _difference(
            "connections at the database at the knee", first.connections, second.connections,
            lambda one: f"{one:.0f}",
        )  # fmt: skip
    names = dict.fromkeys(one.name for one in (*before.recommendations, *after.recommendations))
    for name in names:
        old, new = before.recommended(name), after.recommended(name)
        if old and new:
            yield _difference(
                f"recommended {name}", old.value, new.value, lambda one: f"{one:g}",
                max(old.spread or 0.0, new.spread or 0.0),
            )  # fmt: skip
        else:
            yield Difference(f"recommended {name}", _value(old), _value(new), UNKNOWN)


def _conditions(result: Result) -> tuple[str, str, str]:
    """Return what two results must have in common to be compared."""
    objective = f"p99 {_duration(result.objective.p99_s)}, {_percent(result.objective.errors)}"
    return result.offered, objective, str(result.machine.cores)


def _difference(
    name: str,
    before: float | None,
    after: float | None,
    shown: Callable[[float], str],
    noise: float = 0.0,
) -> Difference:
    """Return the row of a figure; *noise* is the part of it by which it varies by itself."""
    if before is None or after is None:
        first, second = (UNKNOWN if one is None else shown(one) for one in (before, after))
        return Difference(name, first, second, UNKNOWN)
    if before == after:
        change = "none"
    elif not before:
        change = UNKNOWN
    else:
        relative = after / before - 1
        change = f"{relative:+.1%}"
        if abs(relative) <= noise:
            change += f", within the noise ({_percent(noise)})"
    return Difference(name, shown(before), shown(after), change)


def _value(one: Recommendation | None) -> str:
    return UNKNOWN if one is None else f"{one.value:g}"


def _percent(part: float | None) -> str:
    return UNKNOWN if part is None else f"{100 * part:.3g} %"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1_000 * seconds:.3g} ms"
