"""
SQLAlchemy's engine within Greenline's connection budget.

The requests of all workers share the host's connections, and each request gives back at its end
what it has checked out. Before, the program ran as ``gunicorn --threads 8 sqlalchemy_report:app``,
with another import. With DATABASE_URL in the environment, in the folder examples/, where the first
command installs greenline from this checkout:

    pip install .. flask psycopg2-binary sqlalchemy
    gunicorn -k greenline.worker.GreenWorker -w 2 sqlalchemy_report:app
    curl http://127.0.0.1:8000/report
"""

import os

from flask import Flask
from sqlalchemy import column, func, make_url, select, table

from greenline.sqlalchemy import create_engine  # before: from sqlalchemy import create_engine

app = Flask(__name__)
engine = create_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg2"))
activity = table("pg_stat_activity", column("backend_type"), column("datname"))


@app.get("/report")
def report():
    """Return the number of connections to this database."""
    query = (
        select(func.count())
        .where(activity.c.datname == func.current_database())
        .where(activity.c.backend_type == "client backend")
    )
    with engine.connect() as conn:
        return {"connections": conn.execute(query).scalar()}
