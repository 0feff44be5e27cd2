"""Pools of Postgres, and clients of MongoDB, behind a proxy that misbehaves on request."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from embedded.mongo import Mongo as Server
from embedded.postgres import Postgres
from greenline.mongo.client import Mongo
from greenline.mongo.driver import Document
from greenline.postgres.connect import connect as connect_to_postgres
from greenline.postgres.control import Control
from greenline.postgres.pool import ConnectionPool
from tests.helpers.pools import Make, Watch
from tests.helpers.proxy import Proxy

# Reads the thing whose _id is 1.
First = Callable[[Database[Document]], Document | None]
# A Mongo of the test's own database behind the proxy: connect(size, "option=value", ...)
Connect = Callable[..., Mongo]
on_both_engines = pytest.mark.parametrize(
    "engine", ["mongo", "standalone_mongo"], ids=["replica set", "standalone"], indirect=True
)
_numbers = itertools.count()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what the test has pushed, at its end."""
    with ExitStack() as one:
        yield one


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Server:
    """The MongoDB of the test: ``on_both_engines`` runs it on either."""
    server: Server = request.getfixturevalue(getattr(request, "param", "mongo"))
    return server


@pytest.fixture
def mongo_proxy(engine: Server) -> Iterator[Proxy]:
    """A proxy before the engine, with no other client on it."""
    with Proxy(("127.0.0.1", engine.port)) as proxy:
        yield proxy
        proxy.pass_on()


def first_by_cursor(database: Database[Document]) -> Document | None:
    """Read as the driver does."""
    return next(database.things.find({"_id": 1}).limit(-1), None)


def first_by_command(database: Database[Document]) -> Document | None:
    """Read as our collections do, without a cursor."""
    return database.things.find_one({"_id": 1})


@pytest.fixture(params=[first_by_cursor, first_by_command], ids=["cursor", "command"])
def first(request: pytest.FixtureRequest) -> First:
    """Both ways to read one: each keeps every promise."""
    way: First = request.param
    return way


@pytest.fixture
def connect(engine: Server, mongo_proxy: Proxy) -> Iterator[Connect]:
    """Makes clients of a new database behind the proxy, and closes them at the end."""
    name = f"t{os.urandom(6).hex()}"

    def make(size: int = 5, *in_uri: str, timeout_s: float = 5, **more: Any) -> Mongo:
        query = "&".join(("directConnection=true", *in_uri))
        uri = f"mongodb://127.0.0.1:{mongo_proxy.port}/{name}?{query}"
        made = Mongo(uri, size_for=lambda _: size, timeout_s=timeout_s, **more)
        stack.callback(made.close)
        return made

    with ExitStack() as stack:
        yield make
        mongo_proxy.pass_on()
    with MongoClient[dict[str, Any]](engine.url) as client:
        client.drop_database(name)


@pytest.fixture
def watch(postgres: Postgres) -> Iterator[Watch]:
    """A look at the backends of an application of this test's own."""
    looking = Watch(postgres, f"promise-{next(_numbers)}")
    yield looking
    looking.close()


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    """A proxy that can misbehave, before the session's Postgres."""
    with Proxy(postgres.socket) as between:
        yield between


@pytest.fixture
def make(watch: Watch, postgres: Postgres) -> Iterator[Make]:
    """Make pools whose backends *watch* sees; close them at the end."""
    made: list[tuple[ConnectionPool, Control]] = []

    def make(max_size: int = 1, url: str = postgres.url, **options: Any) -> ConnectionPool:
        mark = "&" if "?" in url else "?"
        opener = partial(connect_to_postgres, f"{url}{mark}application_name={watch.name}", 5.0)
        control = Control(partial(connect_to_postgres, postgres.url, 5.0))
        pool = ConnectionPool(opener, max_size=max_size, control=control, **options)
        made.append((pool, control))
        return pool

    yield make
    for pool, control in made:
        pool.close(2.0)
        control.close()


@pytest.fixture
def table(watch: Watch) -> Iterator[str]:
    """An empty table of the test's own."""
    name = f"table_{next(_numbers)}"
    watch.ask(f"create table {name} (x int); grant all on {name} to public; select 1")
    yield name
    watch.ask(f"drop table {name}; select 1")
