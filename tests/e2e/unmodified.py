"""A WSGI application that uses Postgres as code for threads may, for the tests of the worker."""

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import psycopg2
from sqlalchemy import create_engine, text

URL = os.environ["DATABASE_URL"]
shared = psycopg2.connect(URL)
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg2://"))


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer the number in the query, by the way that the path names."""
    work = WORKS[environ["PATH_INFO"]]
    body = str(work(int(environ["QUERY_STRING"] or 0))).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def share(number: int) -> int:
    """Ask over the one connection of the process."""
    with shared.cursor() as cursor:
        cursor.execute("select %s from pg_sleep(0.002)", (number,))
        shared.commit()
        return int(cursor.fetchall()[0][0])


def connect(number: int) -> int:
    """Ask over a connection for this request."""
    with closing(psycopg2.connect(URL)) as conn, conn.cursor() as cursor:
        cursor.execute("select %s from pg_sleep(0.3)", (number,))
        return int(cursor.fetchall()[0][0])


def nest(number: int) -> int:
    """Ask over a second connection of the pool while the first is in use."""
    with engine.connect() as outer:
        outer.execute(text("select pg_sleep(0.01)"))
        with engine.connect() as inner:
            return int(inner.execute(text(f"select {number}")).scalar_one())


WORKS: dict[str, Callable[[int], int]] = {
    "/count": abs,
    "/share": share,
    "/connect": connect,
    "/nest": nest,
}
