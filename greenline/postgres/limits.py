"""Read a Postgres server's connection limits for our role, and how many of them others use."""

from collections.abc import Sequence

from psycopg2.extensions import connection as Connection

from greenline.budget.plan import PostgresFacts
from greenline.errors import StoreDown
from greenline.postgres.errors import translated

APPLICATION = "greenline"
# A backend is ours if it has the application name of this connection, which the URL may set, or is
# in a slot of this host: the hosted application may change the name. The type of a backend is
# hidden from roles without membership in its role: a backend with a database and a role is then
# counted as a client, also a parallel worker or a walsender, so the count is never too low.
# reserved_connections and its role exist since PostgreSQL 16.
FACTS = """
with us as (
    select r.oid as role, d.oid as database, r.rolsuper, r.rolconnlimit, d.datconnlimit,
        coalesce(nullif(current_setting('application_name'), ''), %(application)s) as name
    from pg_roles r, pg_database d
    where r.rolname = session_user and d.datname = current_database()
), others as (
    select a.usesysid as role, a.datid as database
    from pg_stat_activity a, us
    where a.pid <> all(%(in_slots)s)
    and coalesce(a.backend_type = 'client backend', num_nulls(a.usesysid, a.datid) = 0)
    and case
        when starts_with(us.name, %(application)s)
        then not starts_with(coalesce(a.application_name, ''), %(application)s)
        else a.application_name is distinct from us.name
    end
)
select
    current_setting('max_connections')::int,
    current_setting('superuser_reserved_connections')::int,
    coalesce(current_setting('reserved_connections', true), '0')::int,
    exists (
        select from pg_roles r
        where r.rolname = 'pg_use_reserved_connections' and pg_has_role(us.role, r.oid, 'usage')
    ),
    rolsuper, rolconnlimit, datconnlimit,
    (select count(*) from others),
    (select count(*) from others where others.role = us.role),
    (select count(*) from others where others.database = us.database),
    pg_backend_pid() <> %(pid)s
from us
"""


def read_facts(conn: Connection, in_slots: Sequence[int] = ()) -> PostgresFacts:
    """
    Read the limits in one statement, which any role may run.

    :param conn: a connection outside of a transaction: inside one, the server repeats its first
        answer.
    :param in_slots: the process ids of the backends in this host's slots. Default: unknown.
    :raises StoreDown: there was no answer, or an invalid one.
    """
    with translated(), conn.cursor() as cursor:
        given = {
            "application": APPLICATION, "pid": conn.info.backend_pid, "in_slots": list(in_slots)
        }  # fmt: skip
        cursor.execute(FACTS, given)
        row = cursor.fetchone()
    if row is None:
        raise StoreDown("Postgres: it does not know our own role and database")
    return PostgresFacts(*row)
