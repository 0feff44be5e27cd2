"""../flask_legacy.py with two mistakes, which ``greenline doctor`` finds."""

import os

import psycopg2
from flask import Flask, jsonify

app = Flask(__name__)
conn = psycopg2.connect(os.environ["DATABASE_URL"])  # expect: GL203


@app.get("/slow")
def slow():
    try:
        with conn, conn.cursor() as cursor:
            cursor.execute("select pg_sleep(1), 42")
            return jsonify(answer=cursor.fetchone()[1])
    except:  # expect: GL211
        return jsonify(answer=None)
