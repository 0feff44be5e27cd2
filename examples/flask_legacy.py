"""
A Flask application that was written for threads, on Greenline's worker as it is.

Each request connects and waits for a second in Postgres. Fifty requests at once take two seconds,
not fifty: GREENLINE_POOL=1 makes each connect a checkout from a pool, which has fewer than fifty.
Before, it ran as ``gunicorn --threads 8 flask_legacy:app``. With DATABASE_URL in the environment,
in the folder examples/, where the first command installs greenline from this checkout:

    pip install .. flask psycopg2-binary
    GREENLINE_POOL=1 gunicorn -k greenline.worker.GreenWorker flask_legacy:app
    curl http://127.0.0.1:8000/slow
"""

import os
from contextlib import closing

import psycopg2
from flask import Flask, jsonify

app = Flask(__name__)


@app.get("/slow")
def slow():
    with closing(psycopg2.connect(os.environ["DATABASE_URL"])) as conn, conn.cursor() as cursor:
        cursor.execute("select pg_sleep(1), 42")
        return jsonify(answer=cursor.fetchone()[1])
