"""An application that keeps the current request per thread, and a formatter for its log."""

import logging
import os
import threading
import weakref
from threading import Thread, Timer
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
