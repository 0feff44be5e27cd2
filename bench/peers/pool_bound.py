"""
A route that holds one of POOL_SIZE connections for SLEEP_S seconds, and nothing that says no.

The pool lets as many wait as come, for half a minute: a 503 is the limiter's.
"""

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from greenline.patch import hook_psycopg2
from greenline.postgres.connect import connect
from greenline.postgres.pool import ConnectionPool

hook_psycopg2()

POOL_SIZE = int(os.environ["POSTGRES_POOL_SIZE"])
SLEEP_S = float(os.environ["BENCH_SLEEP_S"])
pool = ConnectionPool(
    partial(connect, os.environ["DATABASE_URL"], 5.0),
    max_size=POOL_SIZE,
    timeout_s=30.0,
    max_waiting=1_000_000,
)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Sleep in Postgres; ``/readyz`` touches no database."""
    if environ["PATH_INFO"] != "/readyz":
        with (
            pool.connection(autocommit=True, reset=False) as conn,
            conn.cursor() as cursor,
        ):
            cursor.execute("select pg_sleep(%s)", (SLEEP_S,))
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"done\n"]
