"""What tests of the Postgres pool share: a look at its backends, and a way through a proxy."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import psycopg2

from embedded.postgres import Postgres as Server
from greenline.postgres.pool import ConnectionPool
from tests.helpers.proxy import Proxy

Make = Callable[..., ConnectionPool]
_numbers = itertools.count()


class Watch:
    """A superuser's look at one application's backends."""

    def __init__(self, server: Server, name: str) -> None:
        self._conn = psycopg2.connect(server.superuser_url)
        self._conn.autocommit = True
        self.name = name

    def count(self, and_also: str = "true") -> int:
        return int(
            self.ask(
                "select count(*) from pg_stat_activity where application_name = %s and " + and_also,
                self.name,
            )
        )

    def ask(self, statement: str, *values: object) -> Any:
        return ask(self._conn, statement, *values)

    def close(self) -> None:
        self._conn.close()


def ask(conn: Any, statement: str, *values: object) -> Any:
    """Return the first value of the answer."""
    with conn.cursor() as cursor:
        cursor.execute(statement, values)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def limited(watch: Watch, most: int) -> str:
    """
    Return a URL for which the server itself refuses more than *most* connections at once.

    A count of ``pg_stat_activity`` is no proof: it looks at one backend after the other, and may
    see one that ends and the one that comes in its place.
    """
    role = f"limited_{next(_numbers)}"
    watch.ask(f"create role {role} login connection limit {most}; select 1")
    host = watch.ask("show unix_socket_directories")
    return f"postgresql://{role}@/greenline?host={host}"


def through(proxy: Proxy) -> str:
    return f"postgresql://greenline@127.0.0.1:{proxy.port}/greenline?sslmode=disable"


def run(pool: ConnectionPool, statement: str) -> Any:
    with pool.connection(autocommit=True, reset=False) as conn, conn.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


class Busy:
    """Greenlets that ask *pool* again and again, until the end of the block."""

    def __init__(self, pool: ConnectionPool, greenlets: int = 10, hold_s: float = 0.05) -> None:
        self._is_over = False
        self._asking = [gevent.spawn(self._ask, pool, hold_s) for _ in range(greenlets)]

    def _ask(self, pool: ConnectionPool, hold_s: float) -> None:
        while not self._is_over:
            run(pool, f"select pg_sleep({hold_s})")

    def __enter__(self) -> "Busy":
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        gevent.joinall(self._asking, timeout=40, raise_error=True)


@contextmanager
def a_thousand_go_on() -> Iterator[None]:
    """Let a thousand greenlets work meanwhile, and see that nothing held them up."""
    begun = steps = 0

    def go_on() -> None:
        nonlocal begun, steps
        begun += 1
        while True:
            gevent.sleep(0.01)
            steps += 1

    others = [gevent.spawn(go_on) for _ in range(1000)]
    while begun < len(others):
        gevent.sleep(0)
    before = steps
    yield
    taken = steps - before  # before the kill, in which the hub would run
    gevent.killall(others)
    # Each has gone on: with a blocked hub none would. How many steps more there are in half a
    # second says how busy the machine is.
    assert taken >= len(others)
