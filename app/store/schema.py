"""The revision of the schema in Postgres: check it, and upgrade it."""

from pathlib import Path

from psycopg2.extensions import connection as Connection

from app.errors import SchemaBehind

MIGRATIONS = Path(__file__).parent / "migrations"
# An arbitrary number that no other program uses for an advisory lock in this database.
UPGRADE_LOCK = 7_313_702
# The tables that announce their writes, and how many triggers do it.
ANNOUNCING = ["books", "authors", "genres", "agents", "book_authors", "book_genres"]
ANNOUNCEMENTS = 26
LOCK_TIMEOUT = "10s"
# Oldest first: a file is named REVISION_what_it_does.sql.
REVISIONS = tuple(sorted(path.name.partition("_")[0] for path in MIGRATIONS.glob("versions/*.sql")))


def require_current(conn: Connection) -> None:
    """
    Refuse a schema that is older than this code needs.

    :raises SchemaBehind: the message names both revisions.
    """
    # A newer schema is accepted: an upgrade runs before the release that needs it.
    found = _revision(conn)
    if found is None or found in REVISIONS[:-1]:
        raise SchemaBehind(
            f"the schema is behind: {found or 'nothing'} is there, {REVISIONS[-1]} is needed; "
            "run flask db upgrade"
        )


def require_announcements(conn: Connection) -> None:
    """
    Refuse tables that do not announce their writes to the caches.

    :raises SchemaBehind: the message names what to do.
    """
    with conn.cursor() as cursor:
        cursor.execute(
            "select count(*) from pg_trigger"
            " where starts_with(tgname, 'announce_') and tgenabled = 'A'"
            " and tgrelid = any(%s::text[]::regclass[])",
            (ANNOUNCING,),
        )
        if cursor.fetchone() != (ANNOUNCEMENTS,):
            raise SchemaBehind(
                "GREENLINE_CACHE_BYTES is set, and the tables do not announce their writes; "
                "run flask db upgrade with it"
            )


def announce(conn: Connection) -> None:
    """Let the tables announce their writes to the caches."""
    with conn, conn.cursor() as cursor:
        # Writers queue behind a lock that waits for a long transaction.
        cursor.execute(f"set local lock_timeout = '{LOCK_TIMEOUT}'")
        cursor.execute("select pg_advisory_xact_lock(%s)", (UPGRADE_LOCK,))
        cursor.execute("select announce_writes(true)")


def upgrade(conn: Connection) -> list[str]:
    """
    Apply the missing migrations, all of them or none.

    :returns: the new revisions.
    """
    # Alembic keeps the order and the version table; the migrations are plain SQL. Imported here:
    # workers need neither Alembic nor SQLAlchemy.
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import StaticPool

    engine = create_engine("postgresql+psycopg2://", creator=lambda: conn, poolclass=StaticPool)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    try:
        with engine.begin() as transaction:
            # Two upgrades at once run one after the other. The lock belongs to the transaction, so
            # a killed upgrade leaves none.
            transaction.exec_driver_sql(f"select pg_advisory_xact_lock({UPGRADE_LOCK})")
            before = _revision(conn)
            if before is not None and before not in REVISIONS:
                return []  # ahead of this code
            config.attributes["connection"] = transaction
            command.upgrade(config, "head")
            after = _revision(conn)
    except DBAPIError as error:
        # SQLAlchemy's text ends with the statement, and with an address of its pages.
        raise (error.orig or error) from None
    return [revision for revision in REVISIONS if (before or "") < revision <= (after or "")]


def _revision(conn: Connection) -> str | None:
    """Return the current revision, None in an empty database."""
    with conn.cursor() as cursor:
        # Asked first: selecting from a missing table would abort the transaction.
        cursor.execute("select to_regclass('alembic_version')")
        if cursor.fetchone() == (None,):
            return None
        cursor.execute("select version_num from alembic_version")
        row = cursor.fetchone()
    return str(row[0]) if row else None
