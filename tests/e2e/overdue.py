"""A WSGI application that takes too long, in many ways, and knows nothing of deadlines."""

import os
import queue
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg2
import requests
import urllib3

LONG_S = 20
DEAF = f"http://127.0.0.1:{os.environ.get('DEAF_PORT', '9')}/"
lock, items = threading.Lock(), queue.Queue[int]()
done: set[str] = set()
threads = ThreadPoolExecutor(1)
pool = urllib3.HTTPConnectionPool("127.0.0.1", int(os.environ.get("DEAF_PORT", "9")))


def hold_the_lock() -> None:
    with lock:
        threading.Event().wait()


threading.Thread(target=hold_the_lock, daemon=True).start()


def sleep() -> None:
    time.sleep(LONG_S)


def statement() -> None:
    with psycopg2.connect(os.environ["DATABASE_URL"]) as conn, conn.cursor() as cursor:
        cursor.execute("select pg_sleep(%s), 'overdue'", (LONG_S,))


def http_request() -> None:
    requests.get(DEAF)  # noqa: S113


def http_request_that_is_tried_again() -> None:
    pool.request("GET", "/")


def recv() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.recv(1)


def take_lock() -> None:
    with lock:
        pass


def take_item() -> None:
    items.get()


def wait_for_event() -> None:
    threading.Event().wait()


def wait_in_select() -> None:
    near, far = socket.socketpair()
    with near, far:
        select.select([near], [], [])


def run_program() -> None:
    subprocess.run(["sleep", str(LONG_S)], check=True)


def wait_for_a_thread() -> None:
    threads.submit(time.sleep, LONG_S).result()


def answer_500() -> None:
    """Fail as every framework makes it fail: app() turns it into a 500."""
    try:
        sleep()
    except Exception as error:
        raise ZeroDivisionError from error


def answer_by_itself() -> None:
    try:
        sleep()
    except TimeoutError:
        done.add("answer_by_itself")


def swallow() -> None:
    while True:
        try:
            sleep()
        except Exception:
            done.add("swallow")


def clean_up() -> None:
    """Wait for a second in the clean-up."""
    with psycopg2.connect(os.environ["DATABASE_URL"]) as conn, conn.cursor() as cursor:
        try:
            sleep()
        finally:
            cursor.execute("select pg_sleep(1)")
            conn.rollback()
            done.add("clean_up")


def compute() -> None:
    until = time.monotonic() + 1.8
    while time.monotonic() < until:
        pass


def stalled_stream() -> Iterator[bytes]:
    yield b"begun"
    sleep()


def slow_stream(parts: int = 4, pause_s: float = 0.5) -> Iterator[bytes]:
    for _ in range(parts):
        time.sleep(pause_s)
        yield b"part."


def long_stream() -> Iterator[bytes]:
    done.add("long_stream")
    return slow_stream(200, pause_s=0.1)  # well below any deadline


def busy_stream() -> Iterator[bytes]:
    """Send parts without a wait for a second and a half."""
    done.add("busy_stream")
    for _ in range(1_500):
        until = time.monotonic() + 0.001
        while time.monotonic() < until:
            pass
        yield b"part."
    done.add("busy_stream_end")


def broken() -> None:
    raise KeyError("broken")


WAYS: dict[str, Callable[[], Iterator[bytes] | None]] = {
    f"/{way.__name__}": way
    for way in (
        sleep, statement, http_request, http_request_that_is_tried_again, recv, take_lock,
        take_item, wait_for_event, wait_in_select, run_program, wait_for_a_thread, answer_500,
        answer_by_itself, swallow, clean_up, compute, stalled_stream, slow_stream, long_stream,
        busy_stream, broken,
    )
}  # fmt: skip


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Run what the path names."""
    path = environ["PATH_INFO"]
    if path in ("/done", "/healthz"):  # the latter takes no place
        start_response("200 OK", [])
        return [" ".join(sorted(done)).encode()]
    if path == "/body":
        size = len(environ["wsgi.input"].read())
        start_response("200 OK", [("Content-Length", "1")])
        return [b"%d" % size]
    if path == "/large":
        body = b"x" * 8_000_000
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]
    if path not in WAYS:
        start_response("200 OK", [])
        return []
    try:
        parts = WAYS[path]()
    except ZeroDivisionError:
        start_response("500 Internal Server Error", [("Content-Type", "text/html")])
        return [b"something went wrong"]
    start_response("200 OK", [])
    return parts or [b"done"]
