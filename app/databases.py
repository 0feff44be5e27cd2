"""
The databases' part of the composition: what the service's settings say, and when it is ready.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

from app.store import schema
from app.store.declared import DECLARED
from app.store.indexes import Indexes
from app.store.keys import require_one
from config import Settings
from greenline import mongo, postgres
from greenline.budget.plan import Plan
from greenline.errors import DeadlineExceeded, StoreError, Unavailable
from greenline.hub import deadline
from greenline.lifecycle.resources import Resources
from greenline.mongo import OpenMongo
from greenline.mongo.client import make_client
from greenline.postgres import OpenPostgres
from greenline.postgres.connect import check_url, connect
from greenline.postgres.connection import Connection
from greenline.postgres.errors import translated
from greenline.settings import DATABASE_URL, MONGODB_URI

# A statement ends so long before its request does that the server's word of it comes in time.
STATEMENT_MARGIN_S = 0.25
DRY_RUN_S = 2.0

log = logging.getLogger(__name__)


def plans(opened: Mapping[str, OpenPostgres | OpenMongo]) -> dict[str, Plan | None]:
    """Return this worker's plans of connections; None is a server that has not been asked yet."""
    return {name: each.plan for name, each in opened.items()}


def statement_limit_s(request_timeout_s: float) -> float:
    """Return the statement timeout of Postgres, in seconds, for a request timeout."""
    # At most a tenth: a short request timeout must leave the statement most of its time.
    return request_timeout_s - min(STATEMENT_MARGIN_S, request_timeout_s / 10)


def add_postgres(settings: Settings, resources: Resources) -> OpenPostgres:
    """Open Postgres, ready when it answers, has the schema and, once, a key."""
    # A pooler in transaction mode takes no options, and gives a process id that is its own.
    is_direct = settings.postgres_prepare
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
        prepare=is_direct,
        resources=resources,
        question=_required(settings),
    )


def add_mongo(uri: str, settings: Settings, resources: Resources) -> OpenMongo:
    """Open MongoDB, ready when it answers, may be read, and has its indexes."""
    with MONGODB_URI.named():
        make_client(uri, {})  # it opens nothing, and says what is wrong in the URI
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


def _required(settings: Settings) -> Callable[[Connection], None]:
    """Return the readiness check of Postgres: the schema is current and an API key exists."""
    is_open = not settings.auth

    def require(conn: Connection) -> None:
        nonlocal is_open
        schema.require_current(conn)
        if not is_open:
            require_one(conn)
            # Checked until a key was seen once: revoking the last key must not stop the service.
            is_open = True

    return require


def refuse_without_key(settings: Settings) -> None:
    """
    Refuse the start of a service that requires a key and has none.

    If Postgres cannot be asked, the service starts, is not ready, and logs the reason.

    :raises ConfigError: there is no API key, and ``AUTH`` is on.
    """
    if not settings.auth:
        log.warning("AUTH=off: requests are not authenticated")
        return
    try:
        # A connection of its own: a dry run starts none of the resources.
        with (
            deadline.limit(DRY_RUN_S),
            closing(connect(settings.database_url, DRY_RUN_S, None)) as conn,
            translated(),
        ):
            conn.autocommit = True
            schema.require_current(conn)
            require_one(conn)
    except (DeadlineExceeded, StoreError, Unavailable) as error:
        log.warning("not known whether there is an API key: %s", error)
