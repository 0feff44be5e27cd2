"""
A WSGI application that makes garbage all the time, and blocks now and then.

Each request leaves frames, a finalizer and, in ``/connect``, a connection of psycopg2 in reference
cycles; the collector runs in every switch of greenlets. ``/block`` blocks the hub for 0.2 s.
"""

import gc
import os
from collections.abc import Iterable
from typing import Any

import gevent
import psycopg2
from gevent.lock import BoundedSemaphore
from gevent.monkey import get_original

from greenline.hub import watchdog

watchdog.LOG_EVERY_S = 0.5
gc.set_threshold(20, 2, 2)
original_sleep = get_original("time", "sleep")
connecting = BoundedSemaphore(20)


class Cycle:
    """Garbage that only the collector finds, and that gives the interpreter's lock away."""

    def __init__(self, content: object) -> None:
        self.content = content
        self.cycle = self

    def __del__(self) -> None:
        original_sleep(0)


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer with the path."""
    path = environ["PATH_INFO"]
    if path == "/connect":
        with connecting:
            connect()
    elif path == "/block":
        gevent.spawn(block_the_hub).join()  # not in the request: its page would leave the hub
    descend(30)
    start_response("200 OK", [("Content-Length", str(len(path)))])
    return [path.encode()]


def connect() -> None:
    """Use a connection, and leave it to the collector."""
    conn = psycopg2.connect(os.environ["DATABASE_URL"])
    with conn.cursor() as cursor:
        cursor.execute("select 1")
    Cycle([conn, cursor])


def block_the_hub() -> None:
    """Sleep without letting other greenlets run."""
    original_sleep(0.2)


def descend(depth: int) -> None:
    """Leave the frames of *depth* calls in a cycle, and block for a little longer than 2 ms."""
    if depth:
        descend(depth - 1)
        return
    try:
        raise ValueError
    except ValueError as error:
        Cycle(error)
    original_sleep(0.003)


def collect() -> None:
    """Collect, and let the others run."""
    while True:
        gc.collect()
        gevent.sleep(0)


gevent.spawn(collect)
