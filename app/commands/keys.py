"""``flask keys``: create, list and revoke API keys, also before the first start of the service."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import click
import msgspec

from app.commands.servers import OneConnection, plain_errors, postgres
from app.records import Id, Key, KeyInput, NewKey
from app.store import schema
from app.store.keys import Keys
from app.store.ports import Listing, Position
from config import load
from greenline.errors import Conflict

PAGE = 1_000
KEY_COLUMNS = ("id", "name", "begins with", "scopes", "expires", "created")


@click.group()
def keys() -> None:
    """Make, list and revoke API keys."""


@keys.command()
@click.option("--name", required=True, help="Whose it is, or what for.")
@click.option("--scopes", required=True, help="Of read, write and admin, with commas between.")
@click.option("--expires", "days", type=click.IntRange(1, 36_500), help="Days that it works.")
@click.option("--replace", is_flag=True, help="Revoke the key of this name, if there is one.")
def create(name: str, scopes: str, days: int | None, replace: bool) -> None:
    """Make a key and print it, this once; what else is to be said goes to stderr."""
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    sent = {"name": name, "scopes": scopes.split(","), "expires_at": expires_at}
    try:
        key_input = msgspec.convert(sent, KeyInput)
    except msgspec.ValidationError as error:
        raise click.UsageError(str(error)) from error
    with _opened() as store:
        if replace:
            store.delete_where({"name": name})
        try:
            [stored] = store.create([key_input])
        except Conflict as error:
            advice = "revoke it, or --replace it"
            raise click.ClickException(f"there is a key named {name}; {advice}") from error
    made = msgspec.json.decode(stored.json, type=NewKey)
    until = f"until {made.expires_at:%Y-%m-%d %H:%M} UTC" if made.expires_at else "until revoked"
    click.echo(f"key {made.id}, {name}, may {', '.join(made.scopes)} {until}:", err=True)
    # Alone on stdout, so that a script can capture it.
    click.echo(made.key)


@keys.command("list")
def list_() -> None:
    """Show all keys, without what would let anybody use one."""
    with _opened() as store:
        rows = [KEY_COLUMNS, *(_row(key) for key in _all(store))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(KEY_COLUMNS))]
    for row in rows:
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip())


@keys.command()
@click.argument("key", metavar="NAME|ID")
def revoke(key: str) -> None:
    """End a key, by its name or its id: within a second it is refused everywhere."""
    with _opened() as store:
        # A name may consist of digits, so names are tried first.
        if not store.delete_where({"name": key}):
            key_id = _id(key)
            if key_id is None or not store.get_many([key_id]):
                raise click.ClickException(f"there is no key {key}")
            store.delete([key_id])
    click.echo(f"key {key} is revoked")


@contextmanager
def _opened() -> Iterator[Keys]:
    with plain_errors(), closing(postgres(load())) as conn:
        # Otherwise an older schema would show as an SQL error.
        schema.require_current(conn)
        yield Keys(OneConnection(conn))


def _id(text: str) -> int | None:
    """Return *text* as an id; None if it is none."""
    try:
        return msgspec.convert(text, Id, strict=False)
    except msgspec.ValidationError:
        return None


def _all(store: Keys) -> Iterator[Key]:
    position = None
    more = True
    while more:
        page = store.page(Listing("id", False, PAGE, position=position))
        keys = [msgspec.json.decode(item, type=Key) for item in page.items]
        yield from keys
        more = page.more
        if more:
            position = Position(None, keys[-1].id)


def _row(key: Key) -> tuple[str, ...]:
    expires = f"{key.expires_at:%Y-%m-%d %H:%M}" if key.expires_at else "never"
    created = f"{key.created_at:%Y-%m-%d %H:%M}"
    return str(key.id), key.name, f"gl_{key.prefix}_", ",".join(key.scopes), expires, created
