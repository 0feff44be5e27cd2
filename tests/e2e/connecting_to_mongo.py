"""An application that makes a MongoClient at its import and in each request, as much code does."""

import multiprocessing
import os
import time
import warnings
from typing import Any

from flask import Flask
from pymongo import MongoClient

# "MongoClient opened before fork"
warnings.filterwarnings("error", module="pymongo")

URI = os.environ["URI"]
app = Flask(__name__)
# In the arbiter with preload_app.
at_import: MongoClient[dict[str, Any]] = MongoClient(URI)
things = at_import.get_default_database().things
if "ASKS_AT_IMPORT" in os.environ:
    things.create_index("name")


@app.get("/count")
def count() -> str:
    """Answer without a database."""
    return "0"


@app.get("/each")
def each() -> str:
    """Make a client, and leave it to the garbage collection."""
    client: MongoClient[dict[str, Any]] = MongoClient(URI)
    found = client.get_default_database().things.count_documents({})
    time.sleep(0.2)
    return str(found)


@app.get("/closed")
def closed() -> str:
    """Make a client for the length of a block."""
    with MongoClient[dict[str, Any]](URI) as client:
        found = client.get_default_database().things.count_documents({})
        time.sleep(0.2)
    return str(found)


@app.get("/add/<name>")
def add(name: str) -> str:
    """Use the client that was made at the import, in a transaction."""
    with at_import.start_session() as session, session.start_transaction():
        things.insert_one({"name": name}, session=session)
    return str(things.count_documents({}))


@app.get("/find/<name>")
def find(name: str) -> str:
    """Look for one document."""
    return str(things.count_documents({"name": name}))


@app.get("/fork")
def fork() -> str:
    """Have a forked child use the client that was made at the import."""
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe()
    child = context.Process(target=lambda: its.send(things.count_documents({})))
    child.start()
    found = mine.recv()
    child.join()
    return f"{found} {child.exitcode}"
