"""An application that keeps the current request per thread, and a formatter for its log."""

import logging
import threading
from typing import Any

import gevent
from flask import Flask, request

app = Flask(__name__)


class Current(threading.local):
    """What the application knows of the request in progress."""

    number: str | None = None


current, plain = Current(), threading.local()


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
