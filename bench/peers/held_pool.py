"""
WSGI with SQLAlchemy's pool of ``POOL_SIZE`` connections, held for ever, on Postgres.

``/work`` is a short transaction. ``/check`` reads back what an earlier request has set in the
session of the same connection of the pool, and sets something else.
"""

import os
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from sqlalchemy import create_engine

TEXT = [("Content-Type", "text/plain")]
engine = create_engine(
    os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg2://"),
    pool_size=int(os.environ["POOL_SIZE"]),
    max_overflow=0,
)
ZONES = ("UTC", "Europe/Berlin", "Asia/Tokyo", "America/Lima")
READ = "select current_setting('application_name'), current_setting('TimeZone')"
numbers = count()


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer ``right``, or what is wrong."""
    path = environ["PATH_INFO"]
    body = "right" if path == "/ready" else check() if path == "/check" else work()
    data = f"{body}\n".encode()
    start_response("200 OK", [*TEXT, ("Content-Length", str(len(data)))])
    return [data]


def work() -> str:
    """Do three statements in a transaction, one of which takes a while."""
    with engine.begin() as conn:
        conn.exec_driver_sql("select count(*) from pg_class")
        conn.exec_driver_sql("select pg_sleep(0.005)")
        conn.exec_driver_sql("select count(*) from pg_type")
    return "right"


def check() -> str:
    """Compare the session with what it was left as, and leave it as another."""
    with engine.connect() as conn:
        before = conn.info.get("left")
        if before is not None and (found := conn.exec_driver_sql(READ).one()) != before:
            return f"differs: {found} for {before}"
        number = next(numbers)
        left = (f"{os.getpid()} {number}", ZONES[number % len(ZONES)])
        conn.exec_driver_sql("set application_name = %s", (left[0],))
        conn.exec_driver_sql("set timezone = %s", (left[1],))
        conn.commit()
        conn.info["left"] = left
        found = conn.exec_driver_sql(READ).one()
    return "right" if tuple(found) == left else f"differs: {found} for {left}"
