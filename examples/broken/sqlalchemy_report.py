"""../sqlalchemy_report.py with two mistakes, which ``greenline doctor`` finds."""

import os

import requests
from flask import Flask
from sqlalchemy import make_url, text

from greenline.sqlalchemy import create_engine

app = Flask(__name__)
engine = create_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg2"))


@app.get("/report")
def report():
    with engine.begin() as conn:
        count = conn.execute(text("select count(*) from pg_stat_activity")).scalar()
        report = {"connections": count}
        requests.post("http://127.0.0.1:9", json=report)  # expect: GL213  # expect: GL214
        return {"connections": count}
