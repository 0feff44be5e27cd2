import requests
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

app = Flask(__name__)
db = SQLAlchemy(app)
Session = sessionmaker(create_engine("postgresql://localhost/shop"), autocommit=False)
URL = "http://localhost"
currency = db.session.get(db.Model, 1)
currency.rate = requests.get(URL, timeout=5).json()
db.session.commit()


@app.post("/<int:number>")
def pay(number):
    order = db.session.get(db.Model, number)
    if order is None:
        requests.post(URL, timeout=5)
        db.session.rollback()
        return requests.get(URL, timeout=5).text
    order.price = requests.get(URL, timeout=5).json()  # expect: GL214
    db.session.commit()
    requests.post(URL, timeout=5)
    return ""


@app.post("/")
def add():
    db.session.add(db.Model(price=requests.get(URL, timeout=5).json()))
    requests.post(URL, timeout=5)
    db.session.commit()
    return ""


@app.get("/<int:number>")
def price(number):
    if number > 100:
        return db.session.get(db.Model, number).price
    if number:
        found = db.session.get(db.Model, number)
    else:
        found = requests.get(URL, timeout=5).json()
    if number == 1:
        found = db.session.get(db.Model, number)
        return found.price
    answer = requests.get(URL, timeout=5)  # expect: GL214
    db.session.merge(found)
    db.session.commit()
    return answer.text


def fetched(number):
    if number > 100:
        known = db.session.get(db.Model, number)
        return known.price
    answer = requests.get(URL, timeout=5)  # not: GL214
    db.session.add(db.Model(price=answer.json()))
    db.session.commit()
    return answer.text


def by_hand(number):
    session = Session()
    order = session.scalars(number).one()
    order.on_paid = lambda: requests.post(URL, timeout=5)
    try:
        order.price = requests.get(URL, timeout=5).json()  # expect: GL214
    except requests.RequestException:
        session.rollback()
        raise
    session.commit()
