"""
Requests that need two connections of SQLAlchemy's pool, sleep, or connect to Postgres on their own.

The pool is what ``create_engine`` gives: 5 connections and 10 more. ``/readyz`` passes the
limiter, and answers with what that does.
"""

import os
import time

import psycopg2
from flask import Flask
from sqlalchemy import create_engine, text

from greenline.telemetry import counters

URL = os.environ["DATABASE_URL"]
engine = create_engine(URL.replace("postgresql:", "postgresql+psycopg2:"))
app = Flask(__name__)


@app.get("/readyz")
def state():
    """Answer with the limit and the requests in progress, as they were 0.1 s ago or less."""
    totals = counters.totals()
    return {name: totals.get(("limiter", name), 0) for name in ("limit", "in_progress")}


@app.get("/")
def index():
    """Answer at once."""
    return "ok"


@app.get("/nested")
def nested():
    """Hold one connection of the pool and ask for a second one."""
    with engine.connect() as outer:
        first = outer.execute(text("select 20")).scalar_one()
        with engine.connect() as inner:
            second = inner.execute(text("select 22")).scalar_one()
    return str(first + second)


@app.get("/sleep")
def sleep():
    """Sleep for a second."""
    time.sleep(1)
    return "slept"


@app.get("/pg-sleep")
def pg_sleep():
    """Sleep in Postgres for a second, with a connection of this request alone."""
    connection = psycopg2.connect(URL)
    try:
        with connection.cursor() as cursor:
            cursor.execute("select pg_sleep(1)")
    finally:
        connection.close()
    return "slept"
