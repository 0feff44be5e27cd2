"""
Connect to Postgres for every request: the classic script, and nothing more.

psycopg2 blocks the whole worker unless ``BENCH_PSYCOGREEN`` is set. Whatever goes wrong is
left to gunicorn, which answers 500. ``/ready`` touches no database.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

import psycopg2

if os.environ.get("BENCH_PSYCOGREEN"):
    from psycogreen.gevent import patch_psycopg

    patch_psycopg()

TEXT = [("Content-Type", "text/plain")]


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Sleep in the database for the ``seconds`` of the query string, or read."""
    body = b"done\n"
    if environ["PATH_INFO"] != "/ready":
        connection = psycopg2.connect(os.environ["DATABASE_URL"])
        try:
            with connection.cursor() as cursor:
                if environ["PATH_INFO"] == "/":
                    (seconds,) = parse_qs(environ["QUERY_STRING"])["seconds"]
                    cursor.execute("SELECT pg_sleep(%s)", (float(seconds),))
                elif environ["PATH_INFO"] == "/one":
                    cursor.execute("SELECT 1")
                else:
                    cursor.execute("SELECT * FROM actor")
                body = f"{len(cursor.fetchall())} rows\n".encode()
        finally:
            connection.close()
    start_response("200 OK", TEXT)
    return [body]
