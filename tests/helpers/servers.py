"""
Real servers for the tests, and for those of the benches.

pyproject.toml names this module as a plugin: bench/tests is not below
tests/conftest.py, and the servers of a session are started once.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from pymongo import MongoClient

from embedded.mongo import Mongo
from embedded.postgres import Postgres
from tests.helpers.support import OPS_TOKEN, WORKERS, Databases, Service, open_folder, run, service

os.environ |= WORKERS


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A short folder that Postgres's own user may enter, with a blank in its name."""
    with open_folder("greenline test ") as path:
        yield path


@pytest.fixture(scope="session")
def postgres(folder: Path) -> Iterator[Postgres]:
    """A Postgres of the session's own; tests that stop a server start another."""
    with Postgres(folder / "postgres", durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def mongo(folder: Path) -> Iterator[Mongo]:
    """A MongoDB of the session's own, which has transactions and knows commands for tests."""
    with Mongo(folder / "mongo", durable=False, test_commands=True) as server:
        yield server


@pytest.fixture(scope="session")
def standalone_mongo(folder: Path) -> Iterator[Mongo]:
    """One that is no replica set, and has no transactions."""
    with Mongo(folder / "standalone", durable=False, standalone=True) as server:
        yield server


@pytest.fixture(scope="session")
def databases(postgres: Postgres, mongo: Mongo) -> Iterator[Databases]:
    """Both servers with the schema and the sample data."""
    databases = Databases(postgres.url, mongo.url)
    run(["flask", "db", "upgrade", "sample"], databases.environ)
    yield databases
    from app.factory import counts_path  # a second's import, which few sessions need

    counts_path(databases.postgres).unlink(missing_ok=True)


@pytest.fixture(scope="session")
def api(databases: Databases) -> Iterator[Service]:
    """The service on both servers, with the sample data, for tests that only ask it."""
    more = {"GREENLINE_DIAGNOSTICS": "1", "OPS_TOKEN": OPS_TOKEN}
    with service({**databases.environ, **more}) as running:
        yield running


@pytest.fixture
def empty_database(postgres: Postgres) -> Iterator[str]:
    """The URL of a new database without a schema."""
    name = f"t{os.urandom(6).hex()}"
    admin = psycopg2.connect(postgres.superuser_url)
    admin.autocommit = True
    with admin.cursor() as cursor:
        cursor.execute(f"create database {name} owner greenline")
        yield postgres.url.replace("/greenline?", f"/{name}?")
        cursor.execute(f"drop database {name} with (force)")
    admin.close()


@pytest.fixture
def empty_mongo(mongo: Mongo) -> Iterator[str]:
    """The URI of a new MongoDB database."""
    name = f"t{os.urandom(6).hex()}"
    yield f"{mongo.url.rstrip('/')}/{name}"
    with MongoClient(mongo.url) as client:
        client.drop_database(name)
