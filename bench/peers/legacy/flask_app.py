"""
Flask-SQLAlchemy as its documentation has it, with the pool that SQLAlchemy gives it: 5 and 10 more.

``python -m bench.peers.legacy.flask_app`` makes the tables and fills them.
"""

import os

import psycopg2
from flask import Flask, jsonify
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import ForeignKey, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, selectinload

SLEEP_S = 0.2


class Base(DeclarativeBase):
    """The declarative base."""


db = SQLAlchemy(model_class=Base)


class Customer(db.Model):
    """A customer."""

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    orders: Mapped[list["Order"]] = relationship(back_populates="customer")


class Order(db.Model):
    """An order of a customer."""

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str] = mapped_column(index=True)
    total: Mapped[int]
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id), index=True)
    customer: Mapped[Customer] = relationship(back_populates="orders")


app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["SQLALCHEMY_DATABASE_URI"]
db.init_app(app)


@app.get("/")
def index():
    """Answer that the application runs."""
    return "ok"


@app.get("/orders")
def orders():
    """Answer the first orders with their customers, by two queries and a count."""
    query = select(Order).order_by(Order.id).limit(20).options(selectinload(Order.customer))
    found = db.session.scalars(query).all()
    count = db.session.scalar(text('select count(*) from "order"'))
    return jsonify(
        count=count,
        orders=[
            {"number": each.number, "total": each.total, "customer": each.customer.name}
            for each in found
        ],
    )


@app.get("/nested")
def nested():
    """Hold one connection of the pool and ask for a second one."""
    with db.engine.connect() as outer:
        first = outer.execute(text("select 20")).scalar_one()
        with db.engine.connect() as inner:
            second = inner.execute(text("select 22")).scalar_one()
    return jsonify(answer=first + second)


@app.get("/pool-sleep")
def pool_sleep():
    """Sleep in Postgres, with a connection of the pool."""
    db.session.execute(text("select pg_sleep(:seconds)"), {"seconds": SLEEP_S})
    return "slept"


@app.get("/connect-sleep")
def connect_sleep():
    """Sleep in Postgres, with a connection of this request alone."""
    connection = psycopg2.connect(os.environ["DATABASE_URL"])
    try:
        with connection.cursor() as cursor:
            cursor.execute("select pg_sleep(%s)", (SLEEP_S,))
    finally:
        connection.close()
    return "slept"


def fill() -> None:
    """Make the tables with 50 customers and 1,000 orders."""
    with app.app_context():
        db.create_all()
        db.session.add_all(
            Customer(
                name=f"Customer {each}",
                orders=[
                    Order(number=f"N-{each:03}-{nth:03}", total=each * nth) for nth in range(20)
                ],
            )
            for each in range(50)
        )
        db.session.commit()


if __name__ == "__main__":
    fill()
