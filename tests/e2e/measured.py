"""A WSGI application, written for threads, whose requests are counted by the test."""

import os
import time
from typing import Any

import psycopg2
from gevent.monkey import get_original

FAILURES = {"/missing": "404 Not Found", "/broken": "500 Internal Server Error"}


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    path = environ["PATH_INFO"]
    environ["greenline.route"] = path
    if path == "/query":
        ask_postgres("SELECT 1")
    elif path == "/hold":  # the test has the lock
        ask_postgres("SELECT pg_advisory_xact_lock(1)")
    elif path == "/late":
        time.sleep(3600)
    elif path == "/block":
        get_original("time", "sleep")(1.2)
    start_response(FAILURES.get(path, "200 OK"), [("Content-Length", "2")])
    return [b"ok"]


def ask_postgres(statement: str) -> None:
    connection = psycopg2.connect(os.environ["DATABASE_URL"])
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()
