"""``flask indexes``: create, drop and list the indexes in MongoDB."""

from collections.abc import Iterator
from contextlib import contextmanager

import click
from pymongo.database import Database

from app.commands.servers import mongo, plain_errors
from app.store import indexes as store
from app.store.declared import DECLARED
from app.store.ports import Document
from config import load
from greenline.mongo.client import DEFAULT_DATABASE
from greenline.mongo.errors import translated

UNKNOWN = "unknown"
INDEX_COLUMNS = ("collection", "index", "keys", "bytes", "uses", "")


def made(database: "Database[Document]") -> Iterator[tuple[str, str | None]]:
    """Create the missing indexes; yield each one's name, and the reason if it cannot be created."""
    for collection, declared in DECLARED.items():
        for index in declared:
            wrong = store.ensure(lambda: _checkout(database), collection, index)
            yield f"{collection}.{index.name}", wrong


@click.group()
def indexes() -> None:
    """Make, drop and look at the indexes in MongoDB, as the repositories declare them."""


@indexes.command()
def ensure() -> None:
    """Make those that are missing; say which cannot be made."""
    failed = 0
    with _database() as database:
        for name, wrong in made(database):
            failed += wrong is not None
            click.echo(f"{name}: {wrong or 'there'}")
    if failed:
        raise click.ClickException(f"{failed} cannot be made")


@indexes.command()
def drop() -> None:
    """Drop those that are declared; workers make them again when they start."""
    with _database() as database:
        for collection, name in store.drop(database, DECLARED):
            click.echo(f"{collection}.{name}: dropped")


@indexes.command()
def stats() -> None:
    """Show names, keys, sizes, and use counts if the server reports them."""
    rows = [INDEX_COLUMNS]
    with _database() as database:
        for one in store.stats(database, DECLARED):
            numbers = [UNKNOWN if n is None else f"{n:,}" for n in (one.size_bytes, one.uses)]
            rows.append((one.collection, one.name, one.keys, numbers[0], numbers[1], one.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


@contextmanager
def _database() -> "Iterator[Database[Document]]":
    with plain_errors(), mongo(load()) as client:
        yield client.get_default_database(DEFAULT_DATABASE)


@contextmanager
def _checkout(database: "Database[Document]") -> "Iterator[Database[Document]]":
    # The client of a command has no such translation of its own, unlike a worker's.
    with translated():
        yield database
