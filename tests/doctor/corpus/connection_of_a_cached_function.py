from functools import lru_cache

import psycopg2
from flask import Flask

app = Flask(__name__)


@lru_cache
def connection():
    return psycopg2.connect("dbname=shop")  # expect: GL203


@lru_cache
def titles():
    with psycopg2.connect("dbname=shop") as conn, conn.cursor() as cursor:  # not: GL203
        cursor.execute("select title from book")
        return cursor.fetchall()


@app.get("/")
def index():
    with connection().cursor() as cursor:
        cursor.execute("select 1")
        return {"titles": titles()}
