"""Define the command ``greenline capacity``."""

import re
from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from greenline import settings
from greenline.budget import DOES_NOT_FIT, FITS
from greenline.budget.plan import table
from greenline.errors import ConfigError
from greenline.tune import capacity as sums
from greenline.tune import results
from greenline.tune.capacity import Application, Host, Row

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}
WIDTH = 100
HEAD = ("load", "requests/s", "hosts", "workers", "pool", "connections", "in use", "MiB", "binds")


class Duration(click.ParamType[float]):
    """A time such as 8s, 500ms or 1m; a number alone is seconds."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds, float."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)?", str(value))
        if match is None:
            self.fail(f"{value!r} is no time such as 8s, 500ms or 1m", param, ctx)
        return float(match[1]) * UNITS_S[match[2] or ""]


class Finite(click.FloatRange):
    """A number that is neither infinite nor NaN, which are within each range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, float."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


@click.command()
@click.argument("result", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--rate", type=Finite(0, min_open=True), help="Requests a second.")
@click.option("--users", type=click.IntRange(1), help="Instead of --rate, with --think.")
@click.option("--think", type=Duration(), help="What a user waits between two requests, as in 8s.")
@click.option("--cores", type=Finite(0, min_open=True), help="Of a host; as measured.")
@click.option("--memory", type=click.IntRange(1), metavar="MIB", help="Of a host; as measured.")
@click.option("--max-connections", type=click.IntRange(1), help="Of Postgres (100).")
@click.pass_context
def capacity(
    context: click.Context,
    /,
    result: Path | None,
    rate: float | None,
    users: int | None,
    think: float | None,
    cores: float | None,
    memory: int | None,
    max_connections: int | None,
) -> None:
    """
    Compute hosts, workers and pools for a load, and what binds first.

    RESULT is what greenline tune --json has written; without it, what is assumed is printed. A
    host may be a pod. GREENLINE_SURGE_HOSTS start in addition while a deploy rolls. Exits with 0
    when the load fits, 1 when it does not, 2 for wrong use.
    """
    try:
        measured = results.read(result) if result else None
        app = sums.application(measured) if measured else sums.ASSUMED
        wanted, per_second = _wanted(app, rate, users, think)
        notes = [*app.notes]
        if cores is None:
            cores = measured.machine.cores if measured else sums.CORES
            notes.append(f"{_source(measured)}: a host has {cores:g} cores (--cores).")
        if memory is None:
            memory = measured.machine.memory_mib if measured else sums.HOST_MIB
            notes.append(f"{_source(measured)}: a host has {memory} MiB (--memory).")
        if max_connections is None:
            max_connections = sums.MAX_CONNECTIONS
            notes.append(f"Assumed: Postgres has max_connections = {max_connections}.")
        surge, host = settings.SURGE_HOSTS.read(), Host(cores, memory)
        table_of = list(sums.rows(app, host, per_second, max_connections, surge))
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    _, needed = table_of[0]
    explained = sums.explained(app, host, needed, surge, wanted)
    lines = [*_wrapped(notes), "", *_wrapped(explained), ""]
    if needed.plan is not None:
        lines += [table("Postgres", needed.plan), ""]
    lines += [*_aligned(table_of), "", *_wrapped(_remarks(app, table_of, max_connections, surge))]
    click.echo("\n".join(lines).rstrip())
    context.exit(FITS if needed.fits else DOES_NOT_FIT)


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from wrap(line, WIDTH, subsequent_indent="  ")


def _source(measured: results.Result | None) -> str:
    return "As measured" if measured else "Assumed"


def _wanted(
    app: Application, rate: float | None, users: int | None, think: float | None
) -> tuple[str, float]:
    """Return a line about the wanted rate, and the rate."""
    if rate is not None:
        if users is not None or think is not None:
            raise ConfigError("there is one of --rate and --users with --think")
        return f"wanted: {rate:.1f} requests a second", rate
    if users is None or think is None:
        raise ConfigError("give --rate, or --users and --think")
    # The response time law: each user thinks, asks and waits.
    each_s = think + app.response_s
    if not each_s:
        raise ConfigError("--think: a time of 0 makes the rate of the users infinite")
    rate = users / each_s
    return (
        f"wanted: {users} users / ({think:g} s of thinking + {1_000 * app.response_s:.3g} ms for "
        f"an answer) = {rate:.1f} requests a second",
        rate,
    )


def _aligned(table_of: list[tuple[int, Row]]) -> Iterator[str]:
    """Yield the lines of the table."""
    cells: list[tuple[str, ...]] = [HEAD]
    for times, one in table_of:
        numbers = (one.hosts, one.workers, one.pool, one.connections)
        cells.append((
            f"{times}x", f"{one.rate:.1f}", *map(str, numbers),
            f"{one.in_use:.1f}" if one.in_use else "-", f"{one.memory_mib:.0f}", one.binds,
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        *figures, last = line
        right = (text.rjust(width) for text, width in zip(figures, widths, strict=False))
        yield "  ".join((*right, last))


def _remarks(
    app: Application, table_of: list[tuple[int, Row]], max_connections: int, surge: int
) -> Iterator[str]:
    """Yield what the table does not fit in, and what it does not know."""
    small = [(times, one) for times, one in table_of if one.fits and one.pool < app.pool]
    if small:
        times, one = small[0]
        yield (
            f"From {times}x on a worker's pool is {one.pool} and not {app.pool}, which is enough: "
            f"{sums.SPARE} times what is in use is {one.min_pool}."
        )
    refused = [(times, one) for times, one in table_of if one.binds == "connections"]
    if refused:
        times, one = refused[0]
        yield (
            f"From {times}x on the workers do not fit in max_connections = {max_connections}: "
            f"{times}x needs max_connections = {sums.needed_connections(one, surge)}, or a "
            "pgbouncer in front of Postgres"
            + (":" if one.in_use else "; its size is not known, as the time in Postgres is not.")
        )
        yield from _bouncers(refused, max_connections)
        yield (
            "It is for an application that connects by itself: Greenline's pools hold no more than "
            "Postgres allows, behind a pgbouncer too."
        )
    slow = [times for times, one in table_of if one.rate > app.max_rate]
    if slow:
        yield (
            f"From {slow[0]}x on the database binds: {app.max_rate:.1f} requests a second is what "
            "it did while the workers were not busy; hosts do not help, a larger one, a replica or "
            "cheaper queries do."
        )
    elif app.proven_rate:
        unknown = [times for times, one in table_of if one.rate > app.proven_rate]
        if unknown:
            yield (
                f"From {unknown[0]}x on it is more than the {app.proven_rate:.1f} requests a "
                "second that this database was measured with: whether it can do that is not known."
            )


def _bouncers(refused: list[tuple[int, Row]], max_connections: int) -> Iterator[str]:
    for times, one in refused:
        if not one.in_use:
            continue
        pgbouncer = sums.bouncer(one, max_connections)
        line = (
            f"  {times:>2}x: pool_mode = transaction, default_pool_size = {pgbouncer.pool_size}, "
            f"max_client_conn = {pgbouncer.max_client_conn}"
        )
        yield line + " (too many)" * (not pgbouncer.fits)
