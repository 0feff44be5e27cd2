"""Open the databases with the service's settings."""

from collections.abc import Mapping
from functools import partial

from app.readiness import postgres_requirements
from app.store.declared import DECLARED
from app.store.indexes import Indexes
from config import Settings
from greenline import mongo, postgres
from greenline.budget import Plan
from greenline.lifecycle import Resources
from greenline.mongo import OpenMongo
from greenline.mongo.client import make_client
from greenline.postgres import OpenPostgres
from greenline.postgres.connect import check_url
from greenline.settings import DATABASE_URL, MONGODB_URI

# A statement ends this long before its request's deadline, so that the server's error arrives in
# time.
STATEMENT_MARGIN_S = 0.25


def plans(opened: Mapping[str, OpenPostgres | OpenMongo]) -> dict[str, Plan | None]:
    """Return this worker's plan for each server; None: the server has not been asked yet."""
    return {name: each.plan for name, each in opened.items()}


def statement_limit_s(request_timeout_s: float) -> float:
    """Return the statement timeout of Postgres, in seconds, for a request timeout."""
    # At most a tenth: a short request timeout must leave the statement most of its time.
    return request_timeout_s - min(STATEMENT_MARGIN_S, request_timeout_s / 10)


def add_postgres(settings: Settings, resources: Resources) -> OpenPostgres:
    """Return a pool for Postgres, whose readiness includes the schema and an API key."""
    with DATABASE_URL.named():
        check_url(settings.database_url)
    return postgres.open(
        settings.database_url,
        workers=settings.workers,
        hosts=settings.hosts or "auto",
        surge_hosts=settings.surge_hosts,
        max_size=settings.postgres_pool_size,
        pgbouncer_pool_size=settings.pgbouncer_pool_size,
        timeout_s=settings.pool_timeout_s,
        max_waiting=settings.pool_max_waiting,
        statement_timeout_s=statement_limit_s(settings.request_timeout_s),
        prepare=settings.postgres_prepare,
        resources=resources,
        question=postgres_requirements(settings),
    )


def add_mongo(uri: str, settings: Settings, resources: Resources) -> OpenMongo:
    """Return a client of MongoDB, whose readiness includes the right to read and the indexes."""
    with MONGODB_URI.named():
        make_client(uri, {})  # opens no connection, and raises an error if the URI is wrong
    opened = mongo.open(
        uri,
        workers=settings.workers,
        hosts=settings.hosts or 1,
        surge_hosts=settings.surge_hosts,
        max_size=settings.mongodb_max_pool_size,
        max_connections=settings.mongodb_max_connections,
        timeout_s=settings.pool_timeout_s or settings.request_timeout_s,
        documentdb=settings.mongodb_documentdb,
        resources=resources,
        check=lambda: check(),
    )
    # Repeatable: creating an index that exists changes nothing, so a lost answer is an outage.
    indexes = Indexes(partial(opened.database, repeatable=True), DECLARED, opened.capabilities)

    def check() -> None:
        opened.check()
        opened.capabilities()  # unlike a ping it fails without the right to read; logs once
        indexes.check()

    resources.add("indexes", start=indexes.start, close=indexes.close)
    return opened
