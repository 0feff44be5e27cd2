"""Print a result, and show how far a measurement is, by rich."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from greenline.deploy.edits import KEEPALIVE_S
from greenline.tune.configuration import environment, nginx
from greenline.tune.results import Result, Step, Sweep
from greenline.tune.run import Say

EVERY_S = 0.5
WIDTH = 100
COLUMNS = (
    "setting", "answered", "good", "spread", "errors", "p50 ms", "p99 ms", "samples", "cores",
    "MiB", "connections",
)  # fmt: skip
IDLE_COLUMNS = ("setting", "MiB")


@contextmanager
def progress(total_s: float) -> Iterator[Say]:
    """
    Show how much of *total_s* has passed, for the length of the block.

    :param total_s: seconds, float.
    :returns: a context manager that gives a function, which takes what happens now, in a few words.
    """
    console = Console(stderr=True)
    begun_s = monotonic()
    if not console.is_terminal:
        yield lambda text: click.echo(f"{monotonic() - begun_s:5.0f} s  {text}", err=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, is_over = bar.add_task("", total=total_s), Event()

        def move() -> None:
            while not is_over.wait(EVERY_S):
                bar.update(task, completed=monotonic() - begun_s)

        thread = Thread(target=move, daemon=True)
        thread.start()
        try:
            yield lambda text: bar.update(task, description=text)
        finally:
            is_over.set()
            thread.join()


def show(result: Result) -> None:
    """Print what was measured and what is recommended."""
    # What is piped has no width of its own.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"{result.target}: {result.offered}", markup=False)
    objective = result.objective
    console.print(
        f"objective: p99 {objective.p99_s * 1e3:g} ms, errors {objective.errors:.2%}; "
        f"{result.machine.cores} processors; {result.total_s:.0f} s"
    )
    for sweep in result.sweeps:
        console.print()
        console.print(_title(sweep), markup=False)
        console.print(_sweep(sweep))
        if sweep.name == "rate" and (knee := sweep.knee(objective)) is not None:
            console.print(f"the objective holds up to {knee.offered_rate:.0f} requests a second")
    for fit in result.fits:
        if fit.gamma is None or not fit.is_usable:
            console.print(f"no law predicts the {fit.of}: {fit.note}", markup=False)
        else:
            console.print(
                f"Universal Scalability Law of the {fit.of}: sigma {fit.sigma:.3f}, kappa "
                f"{fit.kappa:.5f}, gamma {fit.gamma:.0f}/s, R2 {fit.r_squared:.3f}"
            )
    for one in result.recommendations:
        console.print()
        console.print(f"[bold]{one.name} = {one.value:.0f}[/] {one.unit}")
        for text in (one.measured, one.binds, one.next):
            console.print(f"  {text}", markup=False)
    if result.recommendations:
        console.print("\nTo copy:")
        if variables := environment(result):
            console.print("the environment:")
        for name, value in variables.items():
            console.print(f"  {name}={value}", markup=False)
        if (connections := result.recommended("worker_connections")) is not None:
            console.print("gunicorn.conf.py:")
            console.print(f"  worker_connections = {connections.value:.0f}")
            console.print(f"  keepalive = {KEEPALIVE_S}")
        for block, lines in nginx(result).items():
            console.print(f"nginx, in the {block} block:")
            console.print("\n".join(f"  {line}" for line in lines), markup=False)
        if (postgres := result.recommended("max_connections")) is not None:
            console.print("postgresql.conf:")
            console.print(f"  max_connections = {postgres.value:.0f}")
    if (proof := result.verification) is not None:
        console.print(
            f"\npredicted {proof.predicted_rate:.0f}/s, measured {proof.measured_rate:.0f}/s: "
            f"{proof.within:+.0%}, rounds vary by {_percent(proof.spread)}"
            f"{'' if proof.met else '; the objective was missed'}"
        )
        if proof.against_defaults is not None and proof.ours is not None:
            console.print(_compared(proof.ours, proof.against_defaults))
    for warning in result.warnings:
        console.print(f"warning: {warning}", markup=False)


def _title(sweep: Sweep) -> str:
    title = f"{sweep.name}: {sweep.unit}"
    if sweep.name not in ("rate", "idle"):
        title += f", offered {sweep.steps[0].offered_rate:.0f} requests a second"
    return title


def _sweep(sweep: Sweep) -> Table:
    table = Table(box=None)
    columns = IDLE_COLUMNS if sweep.name == "idle" else COLUMNS
    for name in columns:
        table.add_column(name, justify="right")
    for step in sweep.steps:
        if sweep.name == "idle":
            table.add_row(f"{step.setting:.0f}", f"{step.memory_mib:.1f}")
        else:
            table.add_row(*_row(step))
    return table


def _row(step: Step) -> list[str]:
    latencies = step.latencies
    return [
        f"{step.setting:.0f}",
        f"{step.answered_rate:.0f}",
        f"{step.good_rate:.0f}",
        _percent(step.spread),
        f"{step.errors:.1%}",
        _ms(latencies.p50_s),
        _ms(latencies.p99_s),
        str(latencies.samples),
        f"{step.cpu_of_workers:.1f}" if step.is_seen else "-",
        f"{step.memory_mib:.0f}" if step.is_seen else "-",
        str(step.connections) if step.is_seen or step.connections else "-",
    ]


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _compared(ours: Step, theirs: Step) -> str:
    times = f", {ours.good_rate / theirs.good_rate:.2f} times" if theirs.good_rate else ""
    return (
        f"against gunicorn's documentation ({theirs.setting:.0f} workers, 1,000 connections, no "
        f"limit), each at its best rate: good answers {ours.good_rate:.0f}/s and "
        f"{theirs.good_rate:.0f}/s{times}; {ours.connections} connections at "
        f"the database and {theirs.connections}, {ours.setting * ours.memory_mib:.0f} MiB of all "
        f"workers and {theirs.setting * theirs.memory_mib:.0f}"
    )
