"""
A thousand clients in bursts while the workers are replaced and killed: the budget holds, no client
is failed.

1. CLIENTS clients begin at once, and each asks for a book, a query that sleeps and a book over a
   connection that it keeps. The next burst begins PAUSE_S after the last answer.
2. In mid-burst come three HUP and, after the second, a kill -9 of the worker that has the most
   clients; each waits until the one before it is over.
3. The killed worker is stopped first, for as long as it takes to read from the kernel which
   connections it has: what was in progress on these is what it held, and no other failure is
   excused by it.
4. The server judges the budget: the role's connection limit is the budget.

    python -m bench.burst
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from time import monotonic

from bench import budget, databases, proc, promises, report, sockets
from bench.backends import Backends, Highest
from bench.clients import Asked, Client
from bench.contenders import flask
from bench.servers import Gunicorn, ServerError
from bench.vegeta import split_by_status
from embedded.postgres import Postgres
from greenline import slots
from greenline.postgres.connect import server_of

WORKERS, CLIENTS, MAX_CONNECTIONS = 4, 1000, 100
HUP, KILL = "HUP", "kill -9"
EVENTS = (HUP, HUP, KILL, HUP)
SLEEP_S, PAUSE_S = 0.1, 0.5
BOOKS = 1000
CHANGE_LIMIT_S, SETTLE_LIMIT_S = 60.0, 10.0
ARGUMENTS = ("-c", "gunicorn.conf.py", "--workers", str(WORKERS), "app.wsgi:app")
NOTES = f"""
each burst: {CLIENTS} clients at once, each a book, a query that sleeps {SLEEP_S:g} s, and a book
"whole run" is all that was asked, but for what the killed worker held
what it held: asked on the connections that the kernel says it had, and not ended when it was
stopped; a 200 there was on its way already
GREENLINE_SURGE_HOSTS=0: one host has the whole server; the default keeps half for one host more"""


class Bursts:
    """The clients of the server at *port*, and what became of each request."""

    def __init__(self, port: int, clients: int = CLIENTS) -> None:
        self.asked: list[Asked] = []
        self.bursts = 0
        self._clients = clients
        self._port = port

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Burst after burst in the block, and whole ones before it begins and after it ended."""
        is_over = asyncio.Event()
        task = asyncio.create_task(self._go_on(is_over))
        try:
            await until(lambda: self.bursts or task.done(), "the first burst")
            yield
        finally:
            is_over.set()
            await task

    async def amidst(self) -> None:
        """Return in the midst of the next burst: some queries sleep, and many more wait."""
        before = self.bursts
        await until(lambda: self.bursts > before, "the end of a burst")
        asked = len(self.asked) + self._clients
        await until(lambda: len(self.asked) >= asked, "the midst of a burst")

    async def _go_on(self, is_over: asyncio.Event) -> None:
        is_last = False
        while not is_last:
            is_last = is_over.is_set()
            await asyncio.gather(*(self._be_client(number) for number in range(self._clients)))
            self.bursts += 1
            await asyncio.sleep(PAUSE_S)

    async def _be_client(self, number: int) -> None:
        client = Client(self._port)
        book = f"/books/{number % BOOKS + 1}"
        for path in (book, f"/diagnostics/sleep?seconds={SLEEP_S}", book):
            self.asked.append(await client.ask(path))
        client.close()


class Held:
    """What the killed worker of the server at *port* held, from when it was stopped."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.stopped_s = float("inf")
        self.ports: set[int] = set()

    def __contains__(self, one: Asked) -> bool:
        was_there = one.port in self.ports and one.connecting_s < self.stopped_s
        return was_there and one.ended_s >= self.stopped_s

    async def kill(self, pid: int) -> None:
        """Stop *pid*, note what it has, and kill it."""
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: sockets.is_stopped(pid), "the worker to stop")
        self.stopped_s, self.ports = monotonic(), sockets.client_ports(pid, self.port)
        os.kill(pid, signal.SIGKILL)


async def until(condition: Callable[[], object], what: str, limit_s: float = 60.0) -> None:
    """Wait for *condition*."""
    end = monotonic() + limit_s
    while not condition():
        if monotonic() > end:
            raise ServerError(f"waited {limit_s:.0f} s for {what}")
        await asyncio.sleep(0.005)


async def go_through(arbiter: int, bursts: Bursts, held: Held) -> None:
    """Let all EVENTS happen to the workers of *arbiter*, each in the midst of a burst."""
    async with bursts.going_on():
        for event in EVENTS:
            await bursts.amidst()
            before = set(proc.children(arbiter))
            print(f"burst {bursts.bursts + 1}: {event}", file=sys.stderr, flush=True)
            if event == HUP:
                os.kill(arbiter, signal.SIGHUP)
                gone = before
            else:
                busiest = max(before, key=lambda pid: len(sockets.client_ports(pid, held.port)))
                await held.kill(busiest)
                gone = {busiest}
            await until(lambda gone=gone: _replaced(arbiter, gone), event, CHANGE_LIMIT_S)


def rows(asked: Sequence[Asked], held: Held, seconds: float, rss_mb: float) -> list[report.Row]:
    """Return the row of the whole run, and that of what the killed worker held."""
    parts = {
        "whole run": [one for one in asked if one not in held],
        "held by the killed": [one for one in asked if one in held],
    }
    return [
        report.row(name, report.OURS, split_by_status(part, CLIENTS, seconds), rss_mb)
        for name, part in parts.items()
    ]


def judge(
    whole: report.Row, held: report.Row, *, max_backends: int, highest: int, refused: int, lost: int
) -> list[promises.Verdict]:
    """Judge errors, the *highest* count of backends, what the server *refused*, slots *lost*."""
    errors = sum(whole.answers.values()) - whole.answers.get("200", 0)
    killed = sum(held.answers.values())
    return [
        promises.at_most(f"errors of {sum(whole.answers.values())} requests", errors, 0),
        promises.at_least("requests that the killed worker held", killed, 1),
        promises.at_most("highest count seen by the server", highest, max_backends),
        promises.at_most("connections refused by the server, whose limit that is", refused, 0),
        promises.at_most("slots without a connection after the run", lost, 0),
    ]


def measure(
    found: report.Report, postgres: Postgres, mongo_url: str, folder: Path
) -> list[promises.Verdict]:
    """Run the service through the bursts, and judge."""
    env = {
        "DATABASE_URL": postgres.url,
        "MONGODB_URI": mongo_url,
        "AUTH": "off",
        "WEB_CONCURRENCY": str(WORKERS),
        "GREENLINE_DIAGNOSTICS": "1",
        "GREENLINE_SURGE_HOSTS": "0",
    }
    flask("db", "upgrade", "sample", env={**os.environ, **env})
    plan = budget.ask({**os.environ, **env})
    budget.make_judge(postgres, plan)
    with (
        closing(Backends(postgres.superuser_url)) as backends,
        Gunicorn(ARGUMENTS, ready="/readyz", env=env, log=folder / "server.log") as server,
    ):
        assert server.process is not None
        bursts, held = Bursts(server.port), Held(server.port)
        began_s = monotonic()
        with Highest(backends) as highest:
            asyncio.run(go_through(server.process.pid, bursts, held))
        seconds = round(monotonic() - began_s, 2)
        whole, killed = rows(bursts.asked, held, seconds, server.rss_mb())
        whole.more.update(backends=highest.seen, budget=plan.host, bursts=bursts.bursts)
        found.add(whole)
        found.add(killed)
        lost = lost_slots(postgres.url, backends)
    return judge(
        whole, killed,
        max_backends=plan.host, highest=highest.seen, refused=budget.refusals(postgres), lost=lost,
    )  # fmt: skip


def lost_slots(database_url: str, backends: Backends) -> int:
    """Return how many slots of the slot table have no connection, when all has settled."""
    with closing(slots.SlotTable(slots.path(server_of(database_url)))) as book:
        until_s = monotonic() + SETTLE_LIMIT_S
        while (lost := book.stats()["held_by_all"] - backends.count()) and monotonic() < until_s:
            time.sleep(0.1)
        return lost


def main() -> int:
    """Run the bench, print and write what came of it."""
    return databases.run("burst", MAX_CONNECTIONS, measure, NOTES)


def _replaced(arbiter: int, gone: set[int]) -> bool:
    now = set(proc.children(arbiter))
    return not now & gone and len(now) == WORKERS


if __name__ == "__main__":
    raise SystemExit(main())
