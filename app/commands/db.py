"""``flask db``: upgrade the schema, and add sample data."""

from contextlib import ExitStack, closing

import click

from app.commands.servers import mongo, plain_errors, postgres
from app.store import schema
from config import Settings, load
from greenline.mongo.client import DEFAULT_DATABASE


@click.group(chain=True)
@click.pass_context
def db(context: click.Context) -> None:
    """Work on the databases; several commands may follow each other."""
    # Once for all commands of the chain.
    with plain_errors():
        context.obj = load()


@db.command()
@click.pass_obj
def upgrade(settings: Settings) -> None:
    """Bring the schema in Postgres up to date; with GREENLINE_CACHE_BYTES it announces writes."""
    with plain_errors(), closing(postgres(settings)) as conn:
        done = schema.upgrade(conn)
        if settings.cache_bytes:
            schema.announce(conn)
    click.echo(f"schema: {', '.join(done)} applied" if done else "schema: up to date")


@db.command()
@click.pass_obj
def sample(settings: Settings) -> None:
    """Add sample books, agents, tasks and states, once, where the tables are empty."""
    # Imported here: an upgrade in production needs no generator of sample data.
    from app.commands.sample import add_sample

    with plain_errors(), closing(postgres(settings)) as conn, ExitStack() as stack:
        database = None
        if settings.mongodb_uri is not None:
            client = stack.enter_context(mongo(settings))
            database = client.get_default_database(DEFAULT_DATABASE)
        done = add_sample(conn, database)
    click.echo(f"sample data: {done}")
