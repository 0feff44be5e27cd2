"""An application that keeps the current request per thread, and a formatter for its log."""

import logging
import multiprocessing
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Thread, Timer
from time import sleep
from typing import Any

import gevent
import requests
from flask import Flask, request

app = Flask(__name__)


class Current(threading.local):
    """What the application knows of the request in progress."""

    number: str | None = None


class Renamed(Thread):
    """A class of its own, built on the unpatched one."""

    def run(self) -> None:
        """Let other greenlets run."""
        gevent.sleep(0.05)


THREADS = {
    "imported": lambda: Thread(target=gevent.sleep, args=(0.05,)),
    "derived": Renamed,
    "timer": lambda: Timer(0.05, gevent.sleep),
    "patched": lambda: threading.Thread(target=gevent.sleep, args=(0.05,)),
}


class Kept:
    """An object with a lock in each place."""

    of_class = threading.Lock()
    __slots__ = ("__dict__", "in_slot")

    def __init__(self) -> None:
        self.in_dict, self.in_slot = threading.Lock(), threading.Lock()


def _closure() -> Callable[[], None]:
    lock = threading.Lock()
    return lambda: alone(lock)


kept, inside = Kept(), list[str]()
plain_lock, recursive, condition = threading.Lock(), threading.RLock(), threading.Condition()
semaphore, several = threading.Semaphore(), [threading.Lock()]
fifo, simple, executor = queue.Queue[int](1), queue.SimpleQueue[int](), ThreadPoolExecutor(1)
WAITS: dict[str, Callable[[], Any]] = {
    "name": lambda: sleep(1),
    "global": lambda: alone(plain_lock),
    "attribute": lambda: alone(kept.in_dict),
    "class": lambda: alone(Kept.of_class),
    "slot": lambda: alone(kept.in_slot),
    "list": lambda: alone(several[0]),
    "closure": _closure(),
    "recursive": lambda: alone(recursive),
    "condition": lambda: alone(condition),
    "notice": lambda: notified(),
    "semaphore": lambda: alone(semaphore),
    "queue": lambda: (fifo.put(1), gevent.sleep(0.05), fifo.get()),
    "items": lambda: (Timer(0.05, simple.put, (1,)).start(), simple.get()),
    "executor": lambda: executor.submit(gevent.sleep, 0.05).result(),
}
between_processes, counter = multiprocessing.Lock(), multiprocessing.Value("i", 0)
WAITS_OF_PROCESSES: dict[str, Callable[[], Any]] = {
    "lock": lambda: alone(between_processes),
    "value": lambda: alone(counter),
}


def alone(lock: AbstractContextManager[Any]) -> None:
    """Let other requests run while this one holds the lock; none of them may hold it, too."""
    with lock:
        inside.append("one")
        gevent.sleep(0.05)
        assert inside == ["one"]
        inside.clear()


def notified() -> None:
    """Wait for a notice that nobody gives."""
    with condition:
        condition.wait(0.05)


current, plain = Current(), threading.local()
# As a MongoClient leaves some.
dead = weakref.proxy(Current())


class Formatter(logging.Formatter):
    """gunicorn's logging configuration names it, so the arbiter imports this module."""


@app.get("/count")
def count() -> str:
    return "ok"


@app.get("/remember")
def remember() -> dict[str, Any]:
    """Answer with what is remembered after other requests have begun."""
    current.number = plain.number = request.query_string.decode()
    gevent.sleep(0.2)
    return {"sent": request.query_string.decode(), "found": [current.number, plain.number]}


@app.get("/join/<kind>")
def join(kind: str) -> dict[str, Any]:
    """Start a thread and wait for its end."""
    thread = THREADS[kind]()
    thread.start()
    alive = thread.is_alive()
    thread.join(10)
    return {"alive": [alive, thread.is_alive()]}


@app.get("/fetch/<int:port>")
def fetch(port: int) -> bytes:
    """Ask a server with TLS."""
    url = f"https://localhost:{port}/"
    return requests.get(url, verify=os.environ["CERTIFICATE"], timeout=30).content


@app.get("/wait/<kind>")
def wait(kind: str) -> str:
    """Wait where other requests wait as well."""
    WAITS[kind]()
    return kind


@app.get("/wait-for-processes/<kind>")
def wait_for_processes(kind: str) -> str:
    """Wait for what multiprocessing has."""
    WAITS_OF_PROCESSES[kind]()
    return kind
