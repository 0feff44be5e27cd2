from psycopg2.pool import ThreadedConnectionPool

import requests

pool = ThreadedConnectionPool(1, 10, "dbname=shop")


def pay(order):
    conn = pool.getconn()
    with conn.cursor() as cursor:
        cursor.execute("select price from orders where id = %s", [order])
        requests.post("http://localhost", timeout=3)  # expect: GL214
    pool.putconn(conn)


def look(order):
    conn = pool.getconn()
    with conn.cursor() as cursor:
        cursor.execute("select price from orders where id = %s", [order])
    pool.putconn(conn)
    requests.post("http://localhost", timeout=3)  # not: GL214
