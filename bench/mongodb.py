"""
Lend a MongoDB to a bench: the one of MONGODB_URI, the embedded server, or one in memory.

1. A bench has a database of its own in it, empty at the beginning, and dropped at the end.
2. The bench says which server it was: SecantusDB is no mongod, and its speed is another one.
3. The one in memory (:mod:`bench.engine`) is no bottleneck: beside it the service is measured.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pymongo import MongoClient

from bench import engine
from embedded.mongo import Mongo

DATABASE = "greenline_bench"


@dataclass(frozen=True)
class Lent:
    """Where the bench's database is, what the server is, and its process where that is ours."""

    uri: str
    name: str
    pid: int | None

    def clear(self, collection: str) -> None:
        """Remove all of *collection*'s documents; its indexes stay."""
        with MongoClient[dict[str, Any]](self.uri) as client:
            client.get_default_database()[collection].delete_many({})

    def copy(self, collection: str, target: "Lent") -> None:
        """Insert all of *collection*'s documents into *target*."""
        with (
            MongoClient[dict[str, Any]](self.uri) as source,
            MongoClient[dict[str, Any]](target.uri) as client,
        ):
            documents = source.get_default_database()[collection].find()
            client.get_default_database()[collection].insert_many(list(documents))

    @property
    def is_slow(self) -> bool:
        """Whether it answers so few questions that a bench asks it fewer."""
        return self.name.startswith("SecantusDB")


@contextmanager
def in_memory(round_trip_ms: int = 0) -> Iterator[Lent]:
    """Lend a new one that keeps its documents in memory, and is that far away."""
    with engine.started(round_trip_ms) as (uri, pid):
        yield Lent(with_database(uri, DATABASE), name_in_memory(round_trip_ms), pid)


def name_in_memory(round_trip_ms: int) -> str:
    """Return what a bench calls the one in memory that is that far away."""
    return f"{engine.NAME}, {round_trip_ms} ms" if round_trip_ms else engine.NAME


@contextmanager
def lent(folder: Path, environ: Mapping[str, str] = os.environ) -> Iterator[Lent]:
    """Lend the database; *folder* is where the embedded server keeps its data."""
    given = environ.get("MONGODB_URI")
    if not given:
        with Mongo(folder / "mongo", durable=False) as server:
            uri = with_database(server.url, DATABASE)
            yield Lent(uri, server.version, server.pid)
        return
    uri = with_database(given, DATABASE)
    with MongoClient[dict[str, Any]](uri) as client:
        client.drop_database(DATABASE)
        try:
            yield Lent(uri, name_of(uri), None)
        finally:
            client.drop_database(DATABASE)


def with_database(uri: str, database: str) -> str:
    """Return *uri* with another database, and what it authenticates against as it was."""
    address = urlsplit(uri)
    options = dict(parse_qsl(address.query, keep_blank_values=True))
    before = address.path.strip("/")
    if "@" in address.netloc and before and "authsource" not in map(str.lower, options):
        options["authSource"] = before
    return address._replace(path=f"/{database}", query=urlencode(options)).geturl()


def name_of(uri: str) -> str:
    """Return what the server at *uri* is, and which version."""
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=10_000) as client:
        info = client.server_info()
    secantusdb = info.get("secantusVersion")
    return f"SecantusDB {secantusdb}" if secantusdb else f"mongod {info['version']}"
