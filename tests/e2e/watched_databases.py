"""A Flask application, unmodified, that waits for Postgres, MongoDB, a lock, and itself."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg2
from flask import Flask, request
from gevent.monkey import get_original
from pymongo import MongoClient

app = Flask(__name__)
lock = threading.Lock()
client: MongoClient[dict[str, Any]] = MongoClient(os.environ.get("URI", "localhost"), connect=False)


def until_allowed(pause: Callable[[float], None] = time.sleep) -> None:
    """Wait for the file that the test makes."""
    while not os.path.exists(request.args["file"]):
        pause(0.02)


DEFERRED = """
create function pause() returns trigger as $$ begin perform pg_sleep(0.6); return null; end $$
language plpgsql;
create table paused (id int);
create constraint trigger slow after insert on paused deferrable initially deferred
for each row execute function pause();
insert into paused values (1)
"""


def slow_report() -> None:
    connection = psycopg2.connect(os.environ["URL"])
    with connection, connection.cursor() as cursor:
        if "each" in request.args:
            for _ in range(100):
                cursor.execute("SELECT pg_sleep(%s)", (float(request.args["each"]),))
        elif "commit" in request.args:
            # At the end of the transaction.
            cursor.execute(DEFERRED)
        elif "s" in request.args:
            cursor.execute("SELECT pg_sleep(%s)", (float(request.args["s"]),))
        else:  # the test has it
            cursor.execute("SELECT pg_advisory_xact_lock(1)")
    connection.close()


@app.get("/count")
def count() -> str:
    return "0"


@app.get("/postgres/<name>")
def postgres(name: str) -> str:
    slow_report()
    return name


@app.get("/mongo")
def mongo() -> str:
    things = client.get_default_database().things
    for number in range(50):
        things.insert_one({"number": number})
    return str(things.count_documents({}))


@app.get("/lock")
def wait_for_lock() -> str:
    with lock:
        until_allowed()
    return "held"


@app.get("/sleep")
def sleep() -> str:
    until_allowed()
    return "slept"


@app.get("/large")
def large() -> bytes:
    return bytes(int(request.args["bytes"]))


@app.get("/block")
def block() -> str:
    until_allowed(get_original("time", "sleep"))
    return "blocked"


@app.get("/<path:rest>")
def fail(rest: str) -> str:
    raise RuntimeError(rest)
