import threading

import psycopg2
from flask import Flask, g

app = Flask(__name__)


class Store:
    def __init__(self):
        self.conn = psycopg2.connect("dbname=shop")  # expect: GL203


class Unit:
    def __init__(self):
        self.conn = psycopg2.connect("dbname=shop")  # not: GL203


class Local(threading.local):
    def __init__(self):
        self.conn = psycopg2.connect("dbname=shop")  # not: GL203


store, local = Store(), Local()


@app.before_request
def begin():
    g.unit = Unit()


@app.get("/")
def index():
    with store.conn.cursor() as cursor, g.unit.conn.cursor() as another:
        cursor.execute("select 1")
        another.execute("select 1")
        return str(cursor.fetchone())
