"""
Check what the service requires of Postgres: a current schema and, unless ``AUTH=off``, an API key.
"""

import logging
from collections.abc import Callable
from contextlib import closing

from app.store import schema
from app.store.keys import require_one
from config import Settings
from greenline.errors import DeadlineExceeded, StoreError, Unavailable
from greenline.hub import deadline
from greenline.postgres import Connection
from greenline.postgres.connect import connect
from greenline.postgres.errors import translated

DRY_RUN_S = 2.0

log = logging.getLogger(__name__)


def postgres_requirements(settings: Settings) -> Callable[[Connection], None]:
    """
    Return the readiness check of Postgres, a function that asks over a connection.

    It raises SchemaBehind for an old schema, and for one that announces no writes to the caches;
    and ConfigError as long as there is no API key.
    """
    is_open = not settings.auth

    def require(conn: Connection) -> None:
        nonlocal is_open
        schema.require_current(conn)
        if settings.cache_bytes:
            schema.require_announcements(conn)
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
