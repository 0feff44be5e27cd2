"""
The classic script with SQLAlchemy's pool of ``BENCH_POOL_SIZE`` connections, and psycogreen.

``/ready`` touches no database.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from psycogreen.gevent import patch_psycopg
from sqlalchemy import create_engine

patch_psycopg()

TEXT = [("Content-Type", "text/plain")]
engine = create_engine(
    os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg2://"),
    pool_size=int(os.environ["BENCH_POOL_SIZE"]),
    max_overflow=0,
)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Sleep in the database for the ``seconds`` of the query string, or read."""
    body = b"done\n"
    if environ["PATH_INFO"] != "/ready":
        with engine.connect() as connection:
            if environ["PATH_INFO"] == "/":
                (seconds,) = parse_qs(environ["QUERY_STRING"])["seconds"]
                found = connection.exec_driver_sql("SELECT pg_sleep(%s)", (float(seconds),))
            elif environ["PATH_INFO"] == "/one":
                found = connection.exec_driver_sql("SELECT 1")
            else:
                found = connection.exec_driver_sql("SELECT * FROM actor")
            body = f"{len(found.fetchall())} rows\n".encode()
    start_response("200 OK", TEXT)
    return [body]
