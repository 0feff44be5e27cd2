"""Read from a Postgres server how many connections it allows."""

from psycopg2.extensions import connection as Connection

from greenline.budget import PostgresLimits
from greenline.postgres.errors import translated


def read_limits(conn: Connection) -> PostgresLimits:
    """Ask the server; ``reserved_connections`` exists since PostgreSQL 16 and is 0 before."""
    with translated(), conn.cursor() as cursor:
        cursor.execute(
            "select name, setting::int from pg_settings where name in "
            "('max_connections', 'superuser_reserved_connections', 'reserved_connections')"
        )
        settings: dict[str, int] = dict(cursor.fetchall())
    return PostgresLimits(
        max_connections=settings["max_connections"],
        superuser_reserved_connections=settings["superuser_reserved_connections"],
        reserved_connections=settings.get("reserved_connections", 0),
    )
