import time
from contextlib import closing

import psycopg2
import requests


def pay(url, number):
    connection = psycopg2.connect(url)
    cursor = connection.cursor()
    cursor.execute("update orders set is_paid = true where number = %s", (number,))
    requests.post("http://localhost", timeout=5)  # expect: GL214
    time.sleep(0.1)  # expect: GL215
    connection.commit()
    requests.post("http://localhost", timeout=5)
    connection.commit()
    connection.close()


def pay_in_cursor(url, number):
    with closing(psycopg2.connect(url)) as connection:
        requests.post("http://localhost", timeout=5)  # expect: GL214
        with connection.cursor() as cursor:
            cursor.execute("select 1")
        connection.commit()


def pay_the_price(url, number):
    connection = psycopg2.connect(url)
    cursor = connection.cursor()
    cursor.execute("select %s", [requests.get("http://localhost", timeout=5).text])
    connection.commit()
