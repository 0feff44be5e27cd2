"""
Register hosts, each with its number of connections, as advisory locks in ``pg_locks``.

The lock is held by a session and ends with it. Its class stands for the application, its number for
the host and the connections. ``pg_locks`` shows the locks of all databases, which is right:
``max_connections`` is for all of them, too.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from psycopg2.extensions import connection as Connection

from greenline.postgres.limits import APPLICATION

CONNECTION_BITS, HOST_BITS = 12, 19
MAX_CONNECTIONS, MAX_HOST = 2**CONNECTION_BITS - 1, 2**HOST_BITS - 1
# Seconds for which a host that is gone counts, with its connections: it may return, and its
# backends do not end at once.
GONE_S = 5.0

REGISTERED = f"""
select objid::int8 >> {CONNECTION_BITS}, max(objid::int8 & {MAX_CONNECTIONS}),
    bool_or(pid = pg_backend_pid())
from pg_locks
where locktype = 'advisory' and classid = %s and objsubid = 2 and granted
group by 1
"""  # noqa: S608
BACKENDS = """
select application_name, count(*)
from pg_stat_activity
where coalesce(backend_type, 'client backend') = 'client backend'
and case when %(any)s then starts_with(application_name, %(name)s)
    else application_name = %(name)s end
group by 1
"""
SERVER_STARTED = "select (extract(epoch from pg_postmaster_start_time()) * 1e6)::int8"


class View(NamedTuple):
    """
    The registrations of all hosts, as the server shows them.

    :param registered: the number of connections that each host has registered, by host.
    :param unregistered: backends of hosts that are not registered, int.
    :param is_registered: this session holds a lock, bool.
    """

    registered: Mapping[int, int]
    unregistered: int
    is_registered: bool


def application(host: int) -> str:
    """Return the application name for the connections of *host*."""
    return f"{APPLICATION}/{host}"


def look(conn: Connection) -> View:
    """Ask for the hosts and their connections; raises psycopg2's errors."""
    name = _name(conn)
    with conn.cursor() as cursor:
        cursor.execute(REGISTERED, (_class(name),))
        rows = cursor.fetchall()
        cursor.execute(BACKENDS, {"any": name == APPLICATION, "name": name})
        backends = dict(cursor.fetchall())
    registered = {host: number for host, number, _ in rows}
    if name == APPLICATION:
        unregistered = sum(n for who, n in backends.items() if _host(who) not in registered)
    else:  # the URL sets the application name: it does not contain the host
        unregistered = max(sum(backends.values()) - sum(registered.values()), 0)
    return View(registered, unregistered, any(is_ours for *_, is_ours in rows))


def count_hosts(conn: Connection) -> int:
    """Return the number of registered hosts; raises psycopg2's errors."""
    with conn.cursor() as cursor:
        cursor.execute(REGISTERED, (_class(_name(conn)),))
        return len(cursor.fetchall())


def started(conn: Connection) -> int:
    """Return the server's start in microseconds, which identifies the server."""
    with conn.cursor() as cursor:
        cursor.execute(SERVER_STARTED)
        return int(cursor.fetchall()[0][0])


def register(conn: Connection, host: int, number: int) -> None:
    """
    Register a number of connections, in addition to the locks that the session already has.

    :param conn: the registrar's control connection.
    :param host: the number of the host, int.
    :param number: the number of connections, int.
    """
    # Shared: when the registrar changes, two sessions of one host hold its lock for a moment.
    _call(conn, "pg_advisory_lock_shared", host, number)


def unregister(conn: Connection, host: int, number: int) -> None:
    """
    End a registration.

    :param conn: as for :func:`register`.
    :param host: as for :func:`register`.
    :param number: as for :func:`register`.
    """
    _call(conn, "pg_advisory_unlock_shared", host, number)


def _call(conn: Connection, function: str, host: int, number: int) -> None:
    key = host << CONNECTION_BITS | min(number, MAX_CONNECTIONS)
    with conn.cursor() as cursor:
        cursor.execute(f"select {function}(%s, %s)", (_class(_name(conn)), key))


def _name(conn: Connection) -> str:
    """Return the application name of our backends, without the host's number."""
    name = conn.info.parameter_status("application_name") or APPLICATION
    return APPLICATION if name.startswith(APPLICATION) else name


def _class(name: str) -> int:
    return crc32(name.encode()) >> 1


def _host(name: str) -> int | None:
    found = re.fullmatch(rf"{APPLICATION}/(\d+)", name)
    return int(found[1]) if found else None


class Registry:
    """The hosts that were seen within the last ``GONE_S``, and the connections of each."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}

    def __repr__(self) -> str:
        return f"<Registry {self._seen}>"

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, registered: Mapping[int, int], now: float) -> None:
        """
        Record registrations, and drop hosts that are gone.

        :param registered: the number of connections of each host that is there.
        :param now: the time in seconds, float.
        """
        self._seen |= {host: (number, now) for host, number in registered.items()}
        self._seen = {host: seen for host, seen in self._seen.items() if now - seen[1] < GONE_S}

    def registered_by_others(self, host: int) -> int:
        """Return the sum of the registered connections of all hosts but *host*."""
        return sum(number for other, (number, _) in self._seen.items() if other != host)
