import psycopg2
import requests


def pay(url, number):
    connection = psycopg2.connect(url)
    requests.post("http://localhost", timeout=5)
    cursor = connection.cursor()
    try:
        cursor.execute("update orders set is_paid = true where number = %s", (number,))
        connection.commit()
    except psycopg2.Error:
        connection.rollback()
        requests.post("http://localhost", timeout=5)
    connection.close()


def read(url, number):
    connection = psycopg2.connect(url)
    if number:
        cursor = connection.cursor()
        cursor.execute("select 1")
        return cursor.fetchone()
    price = requests.get("http://localhost", timeout=5)
    connection.close()
    return price
