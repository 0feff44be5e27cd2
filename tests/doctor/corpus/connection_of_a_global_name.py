import threading

import psycopg2
from flask import Flask, g

app = Flask(__name__)
lock = threading.Lock()
shared = None


def connection():
    global shared
    with lock:
        if shared is None:
            shared = psycopg2.connect("dbname=shop")  # expect: GL203
    return shared


def own():
    shared = psycopg2.connect("dbname=shop")  # not: GL203
    g.conn = shared
    return shared


@app.get("/")
def index():
    with connection().cursor() as cursor, own().cursor() as another:
        cursor.execute("select 1")
        another.execute("select 1")
        return str(cursor.fetchone())
