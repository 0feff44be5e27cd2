"""
What each promise of the Postgres pool costs a request, in microseconds.

One greenlet, one connection, rounds interleaved, medians; the server's own time is in every
figure that asks it something, so read the differences. The server shares our one core: to wake
another takes longer than most of what is measured.

    python -m bench.costs
"""
# ruff: noqa: E402

from greenline.patch import patch_all

patch_all()

import os
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import gevent
import psycopg2

from bench import callbacks
from embedded.postgres import temporary
from greenline.errors import DeadlineExceeded
from greenline.hub import deadline
from greenline.postgres import backlog
from greenline.postgres.client import Postgres
from greenline.postgres.connect import connect
from greenline.postgres.control import Control
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.transparent import pooled_connect

ROUNDS, TIMES = 15, 300
SQL = "select relname::text from pg_class where oid = %(oid)s::oid"
VALUES = {"oid": 1259}


def main() -> None:
    """Measure and print."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    with temporary(max(callbacks.GREENLETS) + 20) as server:
        opener = partial(connect, server.url, 5.0)
        pool = ConnectionPool(opener, max_size=1, control=Control(opener))
        conn = connect(server.url, 5.0)
        conn.autocommit = True
        conns = {
            "psycopg2's connection": backlog.psycopg2_connect(server.url),
            "one that may be shared": psycopg2.connect(server.url),
            "a pooled one": pooled_connect(server.url),
        }
        works = _works(pool, conn) | _connects(server.url) | _statements(conns)
        spent: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(ROUNDS):
            for name, work in works.items():
                started = perf_counter()
                for _ in range(TIMES):
                    work()
                spent[name].append((perf_counter() - started) / TIMES * 1e6)
        for name, each in spent.items():
            print(f"{name:58} {median(each):8.1f} us  (least {min(each):.1f})")
        print("\n".join(callbacks.table(server.url)))
        os.sched_setaffinity(0, cores)
        print("\n".join(_lateness(pool)))
        pool.close(2.0)
        conn.close()
        for each in conns.values():
            each.close()


def _lateness(pool: ConnectionPool) -> list[str]:
    """Let statements outlive a deadline of 100 ms while another greenlet counts the time."""
    late, held, gone = [], [], []

    def tick() -> None:
        before = perf_counter()
        while True:
            gevent.sleep(0.001)
            now = perf_counter()
            held.append(now - before - 0.001)
            before = now

    ticker = gevent.spawn(tick)
    for _ in range(20):
        started = perf_counter()
        try:
            with deadline.limit(0.1), pool.connection(autocommit=True, reset=False) as conn:
                conn.cursor().execute("select pg_sleep(60)")
        except DeadlineExceeded:
            late.append(perf_counter() - started - 0.1)
        while pool.stats()["size"]:
            gevent.sleep(0.001)
        gone.append(perf_counter() - started - 0.1)
    ticker.kill()
    return [
        f"a deadline in a statement: raised {median(late) * 1e3:.1f} ms late, at most "
        f"{max(late) * 1e3:.1f}; the backend gone after {median(gone) * 1e3:.1f} ms",
        f"another greenlet meanwhile: held up {max(held) * 1e3:.1f} ms at most",
    ]


def _works(pool: ConnectionPool, conn: Any) -> dict[str, Callable[[], object]]:
    ready, raw = Postgres(pool), Postgres(pool, prepare=False)

    def query() -> None:
        with conn.cursor() as cursor:
            cursor.execute(SQL, VALUES)
            cursor.fetchall()

    def limited(work: Callable[[], object]) -> None:
        with deadline.limit(30):
            work()

    def borrow(reset: bool) -> None:
        with pool.connection(autocommit=True, reset=reset):
            pass

    def transaction() -> None:
        with pool.connection(reset=False) as lent, lent.cursor() as cursor:
            cursor.execute(SQL, VALUES)

    def count() -> None:
        with deadline.spending("postgres"):
            pass

    def fetch(client: Postgres) -> None:
        client.fetch("by_oid", SQL, VALUES)

    return {
        "a query, no pool": query,
        "deadline.limit around nothing": partial(limited, SimpleNamespace),
        "deadline.spending around nothing": count,
        "deadline.spending around nothing, with a deadline": partial(limited, count),
        "a connection borrowed and given back": partial(borrow, False),
        "the same, the session reset": partial(borrow, True),
        "a query in a transaction of the pool": transaction,
        "fetch, not prepared": partial(fetch, raw),
        "fetch, prepared": partial(fetch, ready),
        "fetch, prepared, with a deadline": partial(limited, partial(fetch, ready)),
    }


def _connects(url: str) -> dict[str, Callable[[], object]]:
    """Return what code without a pool does, not pooled and pooled."""

    def connect_and_ask(connect_to: Callable[[str], Any]) -> None:
        conn = connect_to(url)
        with conn.cursor() as cursor:
            cursor.execute("select 1")
        conn.close()

    return {
        "connect, and close": lambda: psycopg2.connect(url).close(),
        "the same, pooled": lambda: pooled_connect(url).close(),
        "connect, a query in a transaction, and close": partial(connect_and_ask, psycopg2.connect),
        "all of the same, pooled": partial(connect_and_ask, pooled_connect),
    }


def _statements(conns: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what an application does over connections of psycopg2's, and of ours."""

    def execute(cursor: Any) -> None:
        cursor.execute("execute one")

    def ask(conn: Any) -> None:
        with conn.cursor() as cursor:
            cursor.execute("execute one")
            cursor.fetchall()

    works: dict[str, Callable[[], object]] = {}
    for name, conn in conns.items():
        conn.autocommit = True
        conn.cursor().execute("prepare one as select 1")
        works[f"execute, {name}"] = partial(execute, conn.cursor())
        works[f"cursor, execute, fetchall, {name}"] = partial(ask, conn)
        works[f"a commit that sends nothing, {name}"] = conn.commit
    return works


if __name__ == "__main__":
    main()
