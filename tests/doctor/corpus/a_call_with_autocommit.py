import psycopg2
import requests


def pay(url, number):
    connection = psycopg2.connect(url)
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("update orders set is_paid = true where number = %s", (number,))
    requests.post("http://localhost", timeout=5)
    connection.commit()
