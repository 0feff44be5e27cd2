"""Draw the state of the workers in a terminal."""

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from time import sleep
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from greenline.errors import ConfigError
from greenline.ops.states import RouteState, State
from greenline.ops.watch import EVERY_S
from greenline.telemetry.reports import Frame

MEBIBYTE = 1024 * 1024
MIN_SHARE = 0.01


class Detail(NamedTuple):
    """
    How much is drawn.

    :param rows: of the tables of routes, requests and blocks, the largest number, int.
    :param frames: the innermost ones of each block, the largest number, int.
    :param has_plans: whether the plans of the connections are drawn, bool.
    """

    rows: int
    frames: int
    has_plans: bool


# The first one that the height of the terminal allows is drawn; of the last one the end is cut off.
DETAILS = (
    Detail(12, 3, True), Detail(5, 3, True), Detail(5, 1, True),
    Detail(10, 3, False), Detail(5, 3, False), Detail(5, 1, False), Detail(3, 1, False),
    Detail(1, 1, False),
)  # fmt: skip


def print_once(state: State) -> None:
    """Print *state*, whatever the height of the terminal."""
    Console().print(_drawn(state, DETAILS[0]))


def follow(state: Callable[[], State]) -> None:
    """
    Draw the state each second until the person ends it.

    :param state: returns it.
    :raises ConfigError: the first look fails.
    """
    console = Console()
    drawn = fitted(state(), console)
    with Live(drawn, console=console, screen=True, auto_refresh=False) as live:
        while True:
            sleep(EVERY_S)
            try:
                drawn = fitted(state(), console)
                live.update(drawn, refresh=True)
            except ConfigError as error:  # it may be started again
                live.update(Group(Text(str(error), "bold red"), drawn), refresh=True)


def fitted(state: State, console: Console) -> RenderableType:
    """
    Return a picture with as much as the height of a terminal allows.

    :param state: what is drawn.
    :param console: the terminal.
    """
    for detail in DETAILS:
        drawn = _drawn(state, detail)
        if len(console.render_lines(drawn, pad=False)) <= console.height:
            break
    return drawn


def _drawn(state: State, detail: Detail) -> RenderableType:
    parts: list[RenderableType] = [_verdict(state), _numbers(state), _workers(state)]
    if state.pools:
        parts.append(_pools(state))
    parts += [Text(f" {name}: {slots.text}") for name, slots in state.slots.items()]
    if state.blocked or state.blocks:
        parts.append(_blocks(state, detail))
    if state.routes:
        parts.append(_routes(state, detail.rows))
    if state.requests:
        parts.append(_requests(state, detail.rows))
    if detail.has_plans:
        parts += [_plan(text) for text in state.plans.values()]
    return Group(*parts)


def _verdict(state: State) -> RenderableType:
    time = datetime.fromtimestamp(state.time).strftime("%H:%M:%S")
    title = f"Greenline {state.version}, {len(state.workers)} workers, {time}"
    if state.findings:
        text = Text("\n".join(f"- {each}" for each in state.findings))
        return Panel(text, title=title, style="red")
    healthy = "Healthy: nothing waits, nothing fails, and no hub is late."
    return Panel(healthy, title=title, style="green")


def _numbers(state: State) -> RenderableType:
    workers = state.workers
    return Text(
        f" {state.rate:.1f} requests/s   p50 {_ms(state.p50_s)}   p99 {_ms(state.p99_s)}   "
        f"in progress {sum(one.in_progress for one in workers)}   "
        f"waiting {sum(one.waiting for one in workers)}\n"
        f" a second: 5xx {state.rates['failed']:.1f}   refused {state.rates['refused']:.1f}   "
        f"504 {state.rates['deadlines']:.1f}   clients gone {state.rates['disconnected']:.1f}"
    )


def _workers(state: State) -> RenderableType:
    table = _table(
        "worker", "connections", "in\nprogress", "waiting", "hub\nlate", "CPU", "waits\nfor CPU",
        "memory",
    )  # fmt: skip
    for one in state.workers:
        late = f"blocked,\n{_ms(one.lag_s)}" if one.is_blocked else _ms(one.lag_s)
        table.add_row(
            str(one.pid),
            f"{one.connections} / {one.connections_max}",
            f"{one.in_progress} / {one.limit}",
            str(one.waiting),
            Text(late, "red" if one.is_blocked else ""),
            f"{one.cpu:.0%}",
            f"{one.queued:.0%}",
            f"{one.memory_bytes / MEBIBYTE:.0f} MiB",
        )
    return table


def _pools(state: State) -> RenderableType:
    table = _table("pool", "in use", "idle", "waiting", "by worker: in use, waiting", text=(0, 4))
    for name, pool in state.pools.items():
        of = f" / {pool.max_size}" if pool.max_size else ""
        each = [
            f"{one.pid}: {one.pools[name].active}, {one.pools[name].waiting}"
            for one in state.workers
            if name in one.pools
        ]
        table.add_row(
            Text(name), f"{pool.active}{of}", str(pool.idle), str(pool.waiting), "   ".join(each)
        )
    return table


def _plan(text: str) -> RenderableType:
    first, *sums = text.splitlines()
    return Group(Text(f" {first}", "bold"), *(Text(f" {line}", no_wrap=True) for line in sums))


def _routes(state: State, rows: int) -> RenderableType:
    table = _table("route", "requests/s", "5xx", "p50", "p99", "where the time goes", text=(0, 5))
    for one in state.routes[:rows]:
        table.add_row(
            Text("no route" if one.route == "-" else one.route),
            f"{one.rate:.1f}",
            f"{one.failed:.0%}",
            _ms(one.p50_s),
            _ms(one.p99_s),
            _parts(one),
        )
    return table


def _parts(one: RouteState) -> str:
    whole = sum(one.parts_s.values()) or 1.0
    ordered = sorted(one.parts_s.items(), key=lambda each: each[1], reverse=True)
    shares = [(name, part_s / whole) for name, part_s in ordered]
    return ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= MIN_SHARE)


def _requests(state: State, rows: int) -> RenderableType:
    table = _table(
        "slow or\nfailed", "status", "took", "request", "most of\nit in", "worker", text=(3,)
    )
    for one in state.requests[:rows]:
        parts_s = {**one.parts_s, "application": one.took_s - sum(one.parts_s.values())}
        most = max(parts_s, key=lambda name: parts_s[name])
        table.add_row(
            datetime.fromtimestamp(one.time).strftime("%H:%M:%S"), str(one.status),
            _ms(one.took_s), Text(f"{one.method} {one.path}"), most, str(one.worker),
        )  # fmt: skip
    return table


def _blocks(state: State, detail: Detail) -> RenderableType:
    table = _table("hub\nblocked", "for", "worker", "in", text=(3,))
    for now in state.blocked:
        stack = [] if now.hub is None else now.hub.stack
        code = _code(now.function or "unknown", stack, detail.frames)
        table.add_row(Text("now", "red"), _ms(now.seconds), str(now.pid), code)
    for one in state.blocks[: detail.rows]:
        time = datetime.fromtimestamp(one.time).strftime("%H:%M:%S")
        code = _code(one.function, one.stack, detail.frames)
        table.add_row(time, _ms(one.took_s), str(one.worker), code)
    return table


def _code(function: str, stack: Sequence[Frame], frames: int) -> Text:
    """Return a function, and the innermost frames below it, the innermost first."""
    text = Text(function)
    for file, line, name in reversed(stack[-frames:]):
        # Names of folders would leave no room for the others.
        text.append(f"\n{os.path.basename(file)}:{line} in {name}", "dim")
    return text


def _table(*names: str, text: Sequence[int] = ()) -> Table:
    """
    Return a table without rows.

    :param names: the headings, str.
    :param text: the numbers of the columns that are wrapped where the terminal is narrow.
    """
    table = Table(box=None, header_style="bold", pad_edge=True, padding=(0, 1))
    for number, name in enumerate(names):
        # A column that may not be wrapped keeps its heading and its numbers whole.
        table.add_column(name, overflow="fold", no_wrap=number not in text)
    return table


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
