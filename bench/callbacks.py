"""
psycopg2's wait callback: ours beside psycogreen's, on the same connections.

1. ``select 1``, prepared, over a unix socket: nothing a service asks is answered faster, so
   nowhere does a callback weigh more.
2. Ours without a deadline, inside one, as most statements of a request are, and with a new one
   for each statement. psycogreen's knows none.
3. Rounds are interleaved, and each is compared with psycogreen's of the same round.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter, thread_time

import gevent
from psycogreen.gevent import gevent_wait_callback
from psycopg2._psycopg import set_wait_callback
from psycopg2.extensions import get_wait_callback

from greenline.hub import deadline
from greenline.postgres.connect import connect
from greenline.postgres.connection import Connection
from greenline.postgres.wait import wait

GREENLETS = (1, 10, 100)
ROUNDS, STATEMENTS = 21, 3000
Ask = Callable[[Connection, int], None]


def table(url: str) -> list[str]:
    """Measure and return the lines to print; Postgres must allow 100 connections."""
    conns = [connect(url, 5.0) for _ in range(max(GREENLETS))]
    for conn in conns:
        conn.autocommit = True
        conn.cursor().execute("prepare one as select 1")
    lines = ["a statement's time, and its processor time in this process, by greenlets:"]
    for greenlets in GREENLETS:
        lines += _compare(conns[:greenlets])
    for conn in conns:
        conn.close()
    return lines


def _compare(conns: list[Connection]) -> list[str]:
    """Measure each way in turns on all *conns* at once."""
    ways: dict[str, tuple[Callable[..., None], Ask]] = {
        "psycogreen's": (gevent_wait_callback, _ask),
        "ours": (wait, _ask),
        "ours in a deadline": (wait, _ask_in_one),
        "ours, a deadline each": (wait, _ask_each_in_one),
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (callback, ask) in ways.items():
            spent[name].append(_time(conns, callback, ask))
    base = spent["psycogreen's"]
    lines = []
    for name, took in spent.items():
        wall, processor = (
            (median(each[of] for each in took), _ratio(took, base, of)) for of in (0, 1)
        )
        lines.append(
            f"{len(conns):5} {name:24} {wall[0]:6.1f} us, {wall[1]:.2f} of psycogreen's;"
            f"{processor[0]:6.1f} us, {processor[1]:.2f}"
        )
    return lines


def _ratio(took: list[tuple[float, float]], base: list[tuple[float, float]], of: int) -> float:
    return median(mine[of] / theirs[of] for mine, theirs in zip(took, base, strict=True))


def _time(conns: list[Connection], callback: Callable[..., None], ask: Ask) -> tuple[float, float]:
    """Return the microseconds of a statement: on the clock, and of the processor."""
    before = get_wait_callback()
    set_wait_callback(callback)
    times = STATEMENTS // len(conns)
    started, worked = perf_counter(), thread_time()
    if len(conns) == 1:
        ask(conns[0], times)
    else:
        asking = [gevent.spawn(ask, conn, times) for conn in conns]
        gevent.joinall(asking, raise_error=True)
    took = (perf_counter() - started) / STATEMENTS, (thread_time() - worked) / STATEMENTS
    set_wait_callback(before)
    return took[0] * 1e6, took[1] * 1e6


def _ask(conn: Connection, times: int) -> None:
    cursor = conn.cursor()
    for _ in range(times):
        cursor.execute("execute one")


def _ask_in_one(conn: Connection, times: int) -> None:
    with deadline.limit(30):
        _ask(conn, times)


def _ask_each_in_one(conn: Connection, times: int) -> None:
    cursor = conn.cursor()
    for _ in range(times):
        with deadline.limit(30):
            cursor.execute("execute one")
