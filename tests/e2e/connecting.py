"""An application that connects in each request, as code without a pool does."""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
from flask import Flask

app = Flask(__name__)
kept: list[Any] = []


def connect() -> Any:
    return psycopg2.connect(os.environ["DATABASE_URL"])


@app.get("/sleep/<float:seconds>")
def sleep(seconds: float) -> str:
    """Wait in the server, and answer with the backend's process id."""
    conn = connect()
    cursor = conn.cursor()
    cursor.execute("select pg_backend_pid(), pg_sleep(%s)", (seconds,))
    (pid, _) = cursor.fetchone()
    conn.close()
    return str(pid)


@app.get("/insist")
def insist() -> str:
    """Connect until there is a connection, and fail for another reason."""
    while True:
        try:
            sleep(0.0)
        except psycopg2.OperationalError:
            continue
        raise ValueError("not for want of a connection")


@app.get("/forget")
def forget() -> str:
    """Leave a connection open, in a transaction."""
    conn = connect()
    with closing(conn.cursor()) as cursor:
        cursor.execute("create table if not exists forgotten (a int); select 1")
    kept.append(conn)
    return "left"


@app.get("/again")
def again() -> str:
    """Leave a transaction open in the connection that the first request has left."""
    with closing(kept[0].cursor()) as cursor:
        cursor.execute("select 1")
    return "left"


@app.get("/kept")
def use_kept() -> str:
    """Use the connections that earlier requests have left."""
    for conn in kept:
        with closing(conn.cursor()) as cursor:
            cursor.execute("select 1")
        conn.rollback()
    return str(len(kept))


@app.get("/child")
def child() -> str:
    """Wait for a child that connects, with a connection in use."""
    conn = connect()
    with closing(conn.cursor()) as cursor:
        cursor.execute("select 1")
    forked = multiprocessing.get_context("fork").Process(target=ask)
    forked.start()
    forked.join()
    conn.close()
    return str(forked.exitcode)


def ask() -> None:
    with closing(connect()) as conn, closing(conn.cursor()) as cursor:
        cursor.execute("select 1")


def plain(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
    """Answer without a framework, which would make a 500 of an error."""
    conn = connect()
    with closing(conn.cursor()) as cursor:
        cursor.execute("select pg_sleep(%s)", (float(environ["PATH_INFO"].rpartition("/")[2]),))
    conn.close()
    start_response("200 OK", [("Content-Length", "2")])
    return iter([b"ok"])


class Failing:
    """A body whose end is an error."""

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"ok"])

    def close(self) -> None:
        raise RuntimeError("the end of the body")


def careless(environ: dict[str, Any], start_response: Any) -> Failing:
    """Leave a transaction open, and fail when all was sent."""
    kept.append(connect())
    with closing(kept[-1].cursor()) as cursor:
        cursor.execute("select 1")
    start_response("200 OK", [("Content-Length", "2")])
    return Failing()
