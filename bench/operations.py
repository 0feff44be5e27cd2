"""
Measure several servers at a number of operations on MongoDB, in turns.

1. The number is divided among the rounds, which are interleaved as those of :mod:`bench.rounds`; a
   row is of all rounds together, and its spread says how far they lie apart.
2. Everybody is asked once by each client before the rounds: what connects and imports late has
   done so. What was inserted is removed before each round: no round finds more than another.
3. What a server and the database spent of the processors is reported for each operation: where the
   database is what limits all, that is what tells them apart.
4. Any operation that fails, of anyone, makes the run invalid.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from bench import load, proc, report
from bench.proc import TICKS_A_SECOND
from bench.rounds import interleaved, refused
from bench.servers import Server


@dataclass(frozen=True)
class Task:
    """*count* operations on *paths* in turn: a GET each, or with a body a POST and its GET."""

    name: str
    count: int
    paths: Sequence[str]
    clients: Sequence[int]
    body: str | None = None


@dataclass(frozen=True)
class Spent:
    """Ticks of the processor that a server and the database have used, until a moment."""

    server: int
    database: int

    @classmethod
    def until_now(cls, server: Server, database: int | None) -> "Spent":
        """Look at *server* and at the process *database*, where that is ours."""
        its = proc.cpu_ticks(server.process.pid) if server.process else 0
        return cls(its, proc.cpu_ticks(database) if database else 0)

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.server - other.server, self.database - other.database)

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.server + other.server, self.database + other.database)


def compete(
    found: report.Report,
    servers: Mapping[str, Server],
    task: Task,
    clients: int,
    rounds: int,
    *,
    clear: Callable[[], None],
    database: int | None,
    **more: Any,
) -> None:
    """
    Measure all *servers* at *task* from *clients*; rows and problems are kept.

    *clear* removes what was inserted; *database* is the process of the database, where it is ours;
    *more* are columns of the rows.
    """
    print(f"{task.name}, {clients} connections", file=sys.stderr, flush=True)
    counts = divided(task.count, rounds, clients)
    for who, server in servers.items():
        warm = load.together([_ask(server, task, clients, clients)], clients)
        if problem := refused(warm.answers):
            found.invalid(f"{task.name} {who} {clients} clients, before the rounds: {problem}")
            return
    runs: dict[str, list[load.Run]] = {who: [] for who in servers}
    spent = {who: Spent(0, 0) for who in servers}
    for round_, (who, server) in interleaved(list(servers.items()), rounds):
        clear()
        before = Spent.until_now(server, database)
        runs[who].append(_ask(server, task, counts[round_], clients))
        spent[who] += Spent.until_now(server, database) - before
    for who, server in servers.items():
        result = load.together(runs[who], clients)
        if problem := refused(result.answers):
            found.invalid(f"{task.name} {who} {clients} clients: {problem}")
        cpu = {"cpu ms": _ms_each(spent[who].server, result.asked)}
        if database is not None:
            cpu["db ms"] = _ms_each(spent[who].database, result.asked)
        row = report.row(task.name, who, result, server.rss_mb(), **more, **cpu)
        found.add(replace(row, spread=_spread(runs[who])))


def divided(count: int, rounds: int, min_: int) -> list[int]:
    """Return how many of *count* operations each round has, and *min_* at least."""
    ends = [count * round_ // rounds for round_ in range(rounds + 1)]
    return [max(end - start, min_) for start, end in pairwise(ends)]


def _ask(server: Server, task: Task, count: int, clients: int) -> load.Run:
    urls = [server.url + path for path in task.paths]
    return load.run(urls, count, clients, body=task.body)


def _ms_each(ticks: int, operations: int) -> float:
    return round(ticks * 1000 / TICKS_A_SECOND / operations, 3)


def _spread(runs: Sequence[load.Run]) -> float | None:
    """Return (most - least) / middle of the operations a second, None of a single run."""
    speeds = sorted(len(run.answers) / run.seconds for run in runs)
    if len(speeds) == 1:
        return None
    return round((speeds[-1] - speeds[0]) / speeds[len(speeds) // 2], 3)
