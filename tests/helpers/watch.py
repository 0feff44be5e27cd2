"""Look at a running service from outside: its sockets, and its connections at the server."""

from pathlib import Path

import psycopg2

from bench.sockets import inodes
from embedded.postgres import Postgres


def backends(postgres: Postgres, name: str, *, asleep: bool = False) -> int:
    """Return how many connections of the application *name* there are, or are in pg_sleep."""
    query = "select count(*) from pg_stat_activity where application_name = %s"
    if asleep:
        query += " and wait_event = 'PgSleep'"
    return count(postgres, query, name)


def statements(postgres: Postgres, text: str) -> int:
    """Return how many statements with *text* in them are in progress."""
    query = "select count(*) from pg_stat_activity where query like %s and state = 'active'"
    return count(postgres, f"{query} and pid <> pg_backend_pid()", f"%{text}%")


def count(postgres: Postgres, query: str, *values: object) -> int:
    """Return the one number that *query* asks for, as a superuser."""
    conn = psycopg2.connect(postgres.superuser_url)
    try:
        with conn.cursor() as cursor:
            cursor.execute(query, values)
            (number,) = cursor.fetchone() or (0,)
    finally:
        conn.close()
    return int(number)


def sockets(pid: int) -> set[str]:
    """Return the inodes of the process's sockets; FileNotFoundError when it is gone."""
    Path(f"/proc/{pid}").stat()
    return {*inodes(pid)}


def listening_sockets() -> set[str]:
    """Return the inodes of the TCP sockets that listen (state 0A, see proc_net_tcp.txt)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[3] == "0A"}
