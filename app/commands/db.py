"""``flask db``: upgrade the schema, add sample data."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import click
import psycopg2
from psycopg2.extensions import connection as Connection
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from app.store import schema
from app.store.ports import Document
from config import Settings, load
from config.env import named
from greenline.errors import GreenlineError, StoreDown
from greenline.mongo.client import DEFAULT_DATABASE, make_client
from greenline.mongo.errors import first_sentence
from greenline.mongo.options import DOCUMENTDB, split
from greenline.postgres.connect import check_url
from greenline.postgres.errors import first_line
from greenline.postgres.limits import APPLICATION

TIMEOUT_S = 5


@click.group(chain=True)
@click.pass_context
def db(context: click.Context) -> None:
    """Work on the databases; several commands may follow each other."""
    with _told_plainly():
        context.obj = load()


@db.command()
@click.pass_obj
def upgrade(settings: Settings) -> None:
    """Bring the schema in Postgres up to date."""
    with _told_plainly(), closing(_postgres(settings)) as conn:
        done = schema.upgrade(conn)
    click.echo(f"schema: {', '.join(done)} applied" if done else "schema: up to date")


@db.command()
@click.pass_obj
def sample(settings: Settings) -> None:
    """Add sample books, agents, tasks and states, once, where the tables are empty."""
    from app.commands.sample import add_sample

    with _told_plainly(), closing(_postgres(settings)) as conn, _mongo(settings) as client:
        done = add_sample(conn, client.get_default_database(DEFAULT_DATABASE))
    click.echo(f"sample data: {done}")


def _postgres(settings: Settings) -> Connection:
    with named("DATABASE_URL"):
        url = check_url(settings.database_url)
    return psycopg2.connect(url, connect_timeout=TIMEOUT_S, fallback_application_name=APPLICATION)


def _mongo(settings: Settings) -> "MongoClient[Document]":
    engine = DOCUMENTDB if settings.mongodb_documentdb else {}
    ours, _ = split(settings.mongodb_uri, {"serverSelectionTimeoutMS": TIMEOUT_S * 1000, **engine})
    with named("MONGODB_URI"):
        return make_client(settings.mongodb_uri, ours)


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Errors that a person can mend are one line that names the variable, not a stack."""
    try:
        yield
    except psycopg2.Error as error:
        raise click.ClickException(f"DATABASE_URL: {first_line(error)}") from error
    except PyMongoError as error:
        raise click.ClickException(f"MONGODB_URI: {first_sentence(error)}") from error
    except StoreDown as error:
        mongo = isinstance(error.__cause__, PyMongoError)
        name = "MONGODB_URI" if mongo else "DATABASE_URL"
        raise click.ClickException(f"{name}: {error}") from error
    except GreenlineError as error:
        raise click.ClickException(str(error)) from error
