"""Flask with greenline.sqlalchemy's engine."""

import os

import sqlalchemy
from flask import Flask
from sqlalchemy.orm import Session

from greenline.sqlalchemy import create_engine

engine = create_engine(os.environ["DATABASE_URL"])
app = Flask(__name__)
PID = sqlalchemy.text("select pg_backend_pid(), pg_sleep(0.02)")


@app.get("/twice")
def twice() -> str:
    """Answer with the backends of two connections, one after the other."""
    with engine.connect() as conn:
        first = conn.execute(PID).scalar_one()
    with Session(engine) as session:
        return f"{first} {session.execute(PID).scalar_one()}"


@app.get("/nested")
def nested() -> str:
    """Answer with the backends of two connections at the same time."""
    with engine.connect() as outer, engine.connect() as inner:
        return f"{outer.execute(PID).scalar_one()} {inner.execute(PID).scalar_one()}"


@app.get("/leave")
def leave() -> str:
    """Leave a setting in the session, which a later request must not find."""
    with engine.connect() as conn:
        found: str = conn.execute(sqlalchemy.text("show application_name")).scalar_one()
        conn.execute(sqlalchemy.text("set application_name = 'left'"))
        conn.commit()
    return found
