import os

import psycopg2
from flask import Flask, g

app = Flask(__name__)


def connection():
    if "conn" not in g:
        g.conn = psycopg2.connect(os.environ["DATABASE_URL"])  # not: GL203
    return g.conn


@app.get("/")
def index():
    with connection().cursor() as cursor:
        cursor.execute("select 1")
        return str(cursor.fetchone())
