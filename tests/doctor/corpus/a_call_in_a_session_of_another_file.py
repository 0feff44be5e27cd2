import requests

from shop import connect, db


def pay(number):
    order = db.session.get(connect, number)
    requests.post("http://localhost", timeout=5)  # expect: GL214
    order.is_paid = True
    db.session.commit()


def count(cache, number):
    cache.session.get(number)
    requests.post("http://localhost", timeout=5)
    cache.session.commit()
