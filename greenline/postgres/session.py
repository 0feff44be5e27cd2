"""
Read what a session keeps, and restore it on another connection.

It is for a connection that an application's own pool holds while no code uses it. What PostgreSQL
does not show (``currval``, the state of procedural languages) cannot be moved.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from psycopg2.extensions import connection as PsycopgConnection
from psycopg2.extensions import cursor

from greenline.postgres.connection import Connection

# One row: the settings of the session as JSON, and whether it has anything that cannot be moved.
QUERY = """
select
  (select pg_catalog.json_object_agg(name, setting)
   from pg_catalog.pg_settings where source = 'session' and name <> all (%s))::pg_catalog.text,
  -- Another role than that of a new session, which ALTER ROLE or ALTER DATABASE may have set.
  pg_catalog.current_setting('role') <> coalesce((
    select pg_catalog.substr(setting, 6)
    from pg_catalog.pg_db_role_setting, pg_catalog.unnest(setconfig) as setting
    where setting like 'role=%%'
      and setrole in (0, (select oid from pg_catalog.pg_roles where rolname = session_user))
      and setdatabase in (0, (select oid from pg_catalog.pg_database
                              where datname = pg_catalog.current_database()))
    order by setrole = 0, setdatabase = 0 limit 1
  ), 'none')
  or pg_catalog.pg_my_temp_schema() <> 0 and (
    exists (select from pg_catalog.pg_class where relnamespace = pg_catalog.pg_my_temp_schema())
    or exists (select from pg_catalog.pg_proc where pronamespace = pg_catalog.pg_my_temp_schema())
    or exists (select from pg_catalog.pg_type where typnamespace = pg_catalog.pg_my_temp_schema())
  )
  or exists (select from pg_catalog.pg_prepared_statements where name !~ '^PGBOUNCER_')
  or exists (select from pg_catalog.pg_cursors)
  or exists (select from pg_catalog.pg_listening_channels())
  or exists (select from pg_catalog.pg_locks
             where locktype = 'advisory' and pid = pg_catalog.pg_backend_pid())
"""
RESTORE = """
select pg_catalog.set_config(name, setting, false)
from pg_catalog.json_each_text(%s::pg_catalog.json) as kept(name, setting)
"""
# Those of the transaction that asks; the session's own begin with default_.
OF_TRANSACTION = ["transaction_isolation", "transaction_read_only", "transaction_deferrable"]
OF_PSYCOPG = "isolation_level", "readonly", "deferrable", "notices", "notifies", "autocommit"


@dataclass
class Session:
    """
    What is restored: the server's settings, and psycopg2's own for the next transaction.

    Without an encoding it is that of a new connection.
    """

    encoding: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    characteristics: dict[str, Any] = field(default_factory=dict)


def read(conn: Connection) -> Session | None:
    """
    Return what the idle session *conn* keeps; None if that cannot be moved.

    :param conn: a connection outside a transaction.
    """
    kept = Session(conn.encoding)
    kept.characteristics = {name: getattr(conn, name) for name in OF_PSYCOPG}
    # The application's typecasters must not change this answer.
    conn.string_types.clear()
    text, is_bound = _ask(conn, QUERY, OF_TRANSACTION)
    if is_bound or conn.session_user() != conn.user:
        return None
    kept.settings = json.loads(text or "{}")
    return kept


def restore(conn: Connection, kept: Session) -> None:
    """Give the session *conn*, as the pool keeps it, what another one had."""
    if kept.encoding is not None and conn.encoding != kept.encoding:
        conn.set_client_encoding(kept.encoding)
    if kept.settings:
        _ask(conn, RESTORE, json.dumps(kept.settings))
    # In their order: with autocommit psycopg2 would send the first ones as settings.
    for name, value in kept.characteristics.items():
        if value is not None:
            setattr(conn, name, value)


def _ask(conn: Connection, query: str, *values: object) -> Any:
    """Return the first row of a statement that leaves no transaction behind."""
    # Without BEGIN and COMMIT where psycopg2 has nothing to send for the change of autocommit.
    is_plain = (conn.isolation_level, conn.readonly, conn.deferrable) == (None, None, None)
    autocommit = conn.autocommit
    conn.autocommit = autocommit or is_plain
    try:
        # psycopg2's class: the application's may log, or return other rows.
        with PsycopgConnection.cursor(conn, cursor_factory=cursor) as asked:
            asked.execute(query, values)
            return asked.fetchone()
    finally:
        if not conn.closed:
            conn.commit()
            conn.autocommit = autocommit
