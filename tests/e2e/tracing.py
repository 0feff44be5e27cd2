"""A Flask application with its own statements, commands and calls, for the tests of its traces."""

import os
import subprocess
import sys
from contextlib import closing
from typing import Any

import psycopg2
import psycopg2.extras
import requests
from flask import Flask, request
from opentelemetry.propagate import inject
from pymongo import MongoClient
from sqlalchemy import create_engine, text

URL, URI = os.environ.get("DATABASE_URL", ""), os.environ.get("MONGODB_URI", "")
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg2://") or "sqlite://")
client: Any = MongoClient(URI or None, connect=False)
app = Flask(__name__)


@app.get("/count")
def count() -> str:
    return "0"


@app.get("/books/<int:number>")
def book(number: int) -> str:
    """Ask both databases for a number that no other request asks for."""
    with closing(psycopg2.connect(URL)) as conn:
        with conn.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
            cursor.execute("select %s as own from pg_sleep(0.01)", (number,))
            assert cursor.fetchone()["own"] == number
        conn.commit()
    with engine.connect() as connection:
        statement = text(f"select {number} + 0, 'secret' as /* 'told' */ word, :own")
        assert connection.execute(statement, {"own": number}).first()[0] == number
    client.get_default_database().books.find_one({"own": number})
    return str(number)


@app.get("/fails")
def fails() -> str:
    with closing(psycopg2.connect(URL)) as conn, conn.cursor() as cursor:
        cursor.execute("select 'secret'::int")
    return ""


@app.get("/calls")
def calls() -> str:
    """Return the header that another service gets, as an instrumented client sends it."""
    headers: dict[str, str] = {}
    inject(headers)
    return requests.get(request.args["url"], headers=headers, timeout=10).text


@app.get("/traceparent")
def traceparent() -> str:
    return request.headers.get("traceparent", "")


@app.get("/forks/<how>")
def forks(how: str) -> str:
    if how == "subprocess":
        # Such a child runs Python before the program.
        program = [sys.executable, "-c", ""]
        subprocess.run(program, check=True, preexec_fn=lambda: None)
    elif (child := os.fork()) == 0:
        os._exit(0)
    else:
        _, status = os.waitpid(child, 0)
        assert status == 0
    return how
