import os

import psycopg2
from flask import Flask

app = Flask(__name__)
conn = psycopg2.connect(os.environ["DATABASE_URL"])  # expect: GL203


@app.get("/")
def index():
    with conn.cursor() as cursor:
        cursor.execute("select 1")
        return str(cursor.fetchone())
