"""
A Flask application that counts each request in a transaction, by peewee, pony and records.

Each library maps the tables ``total``, of one row, and ``counted``, with a row for each request.
"""

import os
from collections.abc import Callable

import peewee
import records
from flask import Flask, request
from playhouse.pool import PooledPostgresqlDatabase
from pony import orm
from psycopg2.extensions import parse_dsn

URL = os.environ["DATABASE_URL"]
Count = Callable[[int], None]


def by_peewee(database: peewee.PostgresqlDatabase) -> Count:
    """Connect in each request; a pool of peewee keeps its connections."""

    class Total(peewee.Model):
        count = peewee.IntegerField()

    class Counted(peewee.Model):
        number = peewee.IntegerField()

    database.bind([Total, Counted])

    def count(number: int) -> None:
        with database.connection_context(), database.atomic():
            total = Total.select().for_update().get()
            total.count += 1
            total.save()
            with database.atomic():  # a savepoint
                Counted.create(number=number)

    return count


def by_pony(database: orm.Database) -> Count:
    """Keep a connection for each greenlet, which is a thread for pony."""

    class Total(database.Entity):  # type: ignore[misc,name-defined]
        count = orm.Required(int)

    class Counted(database.Entity):  # type: ignore[misc,name-defined]
        number = orm.Required(int)

    database.generate_mapping()

    @orm.db_session
    def count(number: int) -> None:
        Total.get_for_update(id=1).count += 1
        Counted(number=number)

    return count


def by_records(database: records.Database) -> Count:
    """Keep connections in SQLAlchemy's pool."""

    def count(number: int) -> None:
        with database.transaction() as conn:
            found = conn.query("select count from total for update").first().count
            conn.query("update total set count = :count", count=found + 1)
            conn.query("insert into counted (number) values (:number)", number=number)

    return count


options = parse_dsn(URL)
name = options.pop("dbname")
counts = {
    "peewee": by_peewee(peewee.PostgresqlDatabase(name, **options)),
    # More connections than the worker may have.
    "pool-of-peewee": by_peewee(PooledPostgresqlDatabase(name, max_connections=100, **options)),
    "pony": by_pony(orm.Database(provider="postgres", dsn=URL)),
    "records": by_records(records.Database(URL.replace("://", "+psycopg2://", 1))),
}
app = Flask(__name__)


@app.get("/<library>")
def count(library: str) -> str:
    """Count the request, whose number is the query."""
    counts[library](int(request.query_string))
    return "counted"
