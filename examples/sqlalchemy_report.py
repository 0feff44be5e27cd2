"""
SQLAlchemy's engine within Greenline's connection budget.

``creator()`` connects in one of the slots that the processes of this host share, so the engine's
pools of all workers stay within what Postgres allows. With DATABASE_URL in the environment, in the
folder examples/, where the first command installs greenline from this checkout:

    pip install '..[flask]' psycopg2-binary sqlalchemy
    gunicorn -k greenline.worker.GreenWorker -w 2 sqlalchemy_report:app
    curl http://127.0.0.1:8000/report
"""

from sqlalchemy import column, create_engine, func, select, table

from greenline import postgres
from greenline.flask import Flask

app = Flask(__name__)
pg = postgres.open()
# An idle connection of the engine's pool keeps its slot, so the pool is small.
engine = create_engine("postgresql+psycopg2://", creator=pg.creator(), pool_size=2, max_overflow=8)
activity = table("pg_stat_activity", column("application_name"), column("datname"))


@app.get("/report")
def report():
    """Return the number of connections to this database by the name of their application."""
    query = (
        select(activity.c.application_name, func.count())
        .where(activity.c.datname == func.current_database())
        .group_by(activity.c.application_name)
    )
    with engine.connect() as conn:
        connections = dict(conn.execute(query).tuples().all())
    return {"connections": connections, "allowed": pg.plan.host}
