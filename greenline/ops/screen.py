"""Draw the state of the workers in a terminal."""

from collections.abc import Callable
from datetime import datetime
from time import sleep

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from greenline.errors import ConfigError
from greenline.ops.states import RouteState, State
from greenline.ops.watch import EVERY_S

MEBIBYTE = 1024 * 1024
MAX_REQUESTS = 10
MIN_SHARE = 0.01


def print_once(state: State) -> None:
    """Print *state*."""
    Console().print(_drawn(state))


def follow(state: Callable[[], State]) -> None:
    """
    Draw the state each second until the person ends it.

    :param state: returns it.
    :raises ConfigError: the first look fails.
    """
    drawn = _drawn(state())
    with Live(drawn, screen=True, auto_refresh=False) as live:
        while True:
            sleep(EVERY_S)
            try:
                drawn = _drawn(state())
                live.update(drawn, refresh=True)
            except ConfigError as error:  # it may be started again
                live.update(Group(Text(str(error), "bold red"), drawn), refresh=True)


def _drawn(state: State) -> RenderableType:
    parts: list[RenderableType] = [_verdict(state), _numbers(state), _workers(state)]
    if state.pools:
        parts.append(_pools(state))
    if state.routes:
        parts.append(_routes(state))
    if state.requests:
        parts.append(_requests(state))
    if state.blocks:
        parts.append(_blocks(state))
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
        "worker",
        "connections",
        "in progress",
        "waiting",
        "hub late",
        "CPU",
        "waits for CPU",
        "memory",
    )
    for one in state.workers:
        late = f"blocked, {_ms(one.lag_s)}" if one.is_blocked else _ms(one.lag_s)
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
    table = _table("pool", "in use", "idle", "waiting", "slots of the host", "orphans", "wanted")
    for name, pool in state.pools.items():
        of = f" / {pool.max_size}" if pool.max_size else ""
        slots = state.slots.get(name)
        held = () if slots is None else (
            f"{slots.held} / {slots.capacity}", str(slots.orphans), str(slots.wanted),
        )  # fmt: skip
        table.add_row(Text(name), f"{pool.active}{of}", str(pool.idle), str(pool.waiting), *held)
    return table


def _routes(state: State) -> RenderableType:
    table = _table("route", "requests/s", "5xx", "p50", "p99", "where the time goes")
    for one in state.routes:
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


def _requests(state: State) -> RenderableType:
    table = _table("slow or failed", "status", "took", "request", "most of it in", "worker")
    for one in state.requests[:MAX_REQUESTS]:
        parts_s = {**one.parts_s, "application": one.took_s - sum(one.parts_s.values())}
        most = max(parts_s, key=lambda name: parts_s[name])
        table.add_row(
            datetime.fromtimestamp(one.time).strftime("%H:%M:%S"), str(one.status),
            _ms(one.took_s), Text(f"{one.method} {one.path}"), most, str(one.worker),
        )  # fmt: skip
    return table


def _blocks(state: State) -> RenderableType:
    table = _table("hub blocked", "for", "in", "worker")
    for one in state.blocks[:MAX_REQUESTS]:
        time = datetime.fromtimestamp(one.time).strftime("%H:%M:%S")
        table.add_row(time, _ms(one.took_s), Text(one.function), str(one.worker))
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=True, padding=(0, 2, 0, 1))
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
