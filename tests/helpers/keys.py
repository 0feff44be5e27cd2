"""API keys for the tests."""

from contextlib import closing
from typing import Any

import msgspec
import psycopg2

from app.commands.servers import OneConnection
from app.records import KeyInput
from app.store.keys import Keys


def make_key(environ: dict[str, str], name: str, *scopes: Any) -> str:
    """Make a key, in the place of the one of this name; return its token."""
    with closing(psycopg2.connect(environ["DATABASE_URL"])) as conn:
        keys = Keys(OneConnection(conn))
        keys.delete_where({"name": name})
        [made] = keys.create([KeyInput(name, list(scopes))])
    return str(msgspec.json.decode(made.json)["key"])
