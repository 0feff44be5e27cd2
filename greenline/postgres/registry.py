"""
What hosts tell each other in ``pg_locks``: who is there, and how many connections each claims.

1. A host holds one session-level advisory lock, which dies with its session. The lock's class
   stands for the application; its number tells the host and what it claims. It is shared: two
   sessions of one host, when the registrar changes, are in nobody's way.
2. A host holds no more than it claims. It claims more first and then looks whether all claims
   fit together, so of two that claim the same the later one sees both. It claims less when it
   holds less.
3. ``pg_locks`` shows those of all databases; ``max_connections`` is for all of them, too.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from psycopg2.extensions import connection as Connection

from greenline.postgres.limits import APPLICATION

CLAIM_BITS, HOST_BITS = 12, 19
MAX_CLAIM, MAX_HOST = 2**CLAIM_BITS - 1, 2**HOST_BITS - 1
# A host that is gone counts for so long, with what it claimed: it may be back, and its backends
# are not gone at once.
GONE_S = 5.0

CLAIMS = f"""
select objid::int8 >> {CLAIM_BITS}, max(objid::int8 & {MAX_CLAIM}), bool_or(pid = pg_backend_pid())
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
    """What the server tells: the claim of each host, backends that nobody claims, our lock."""

    claims: Mapping[int, int]
    unclaimed: int
    is_registered: bool


def application(host: int) -> str:
    """Return the application's name for the connections of *host*."""
    return f"{APPLICATION}/{host}"


def look(conn: Connection) -> View:
    """Ask who is there; psycopg2's errors are the caller's."""
    name = _name(conn)
    with conn.cursor() as cursor:
        cursor.execute(CLAIMS, (_class(name),))
        rows = cursor.fetchall()
        cursor.execute(BACKENDS, {"any": name == APPLICATION, "name": name})
        backends = dict(cursor.fetchall())
    claims = {host: claim for host, claim, _ in rows}
    if name == APPLICATION:
        unclaimed = sum(n for who, n in backends.items() if _host(who) not in claims)
    else:  # the URL names the application: no backend tells its host
        unclaimed = max(sum(backends.values()) - sum(claims.values()), 0)
    return View(claims, unclaimed, any(is_ours for *_, is_ours in rows))


def count_hosts(conn: Connection) -> int:
    """Return how many hosts are registered now; psycopg2's errors are the caller's."""
    with conn.cursor() as cursor:
        cursor.execute(CLAIMS, (_class(_name(conn)),))
        return len(cursor.fetchall())


def started(conn: Connection) -> int:
    """Return when the server was started, in microseconds: another server is another number."""
    with conn.cursor() as cursor:
        cursor.execute(SERVER_STARTED)
        return int(cursor.fetchall()[0][0])


def claim(conn: Connection, host: int, number: int) -> None:
    """Say that *host* claims *number* connections, beside what it says already."""
    _call(conn, "pg_advisory_lock_shared", host, number)


def unclaim(conn: Connection, host: int, number: int) -> None:
    """Take back what :func:`claim` said."""
    _call(conn, "pg_advisory_unlock_shared", host, number)


def _call(conn: Connection, function: str, host: int, number: int) -> None:
    key = host << CLAIM_BITS | min(number, MAX_CLAIM)
    with conn.cursor() as cursor:
        cursor.execute(f"select {function}(%s, %s)", (_class(_name(conn)), key))


def _name(conn: Connection) -> str:
    """Return what the backends of our application are called, without the host."""
    name = conn.info.parameter_status("application_name") or APPLICATION
    return APPLICATION if name.startswith(APPLICATION) else name


def _class(name: str) -> int:
    return crc32(name.encode()) >> 1


def _host(name: str) -> int | None:
    found = re.fullmatch(rf"{APPLICATION}/(\d+)", name)
    return int(found[1]) if found else None


class Registry:
    """The hosts that were there within the last ``GONE_S``, and what each claimed last."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}

    def __repr__(self) -> str:
        return f"<Registry {self._seen}>"

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, claims: Mapping[int, int], now: float) -> None:
        """Note what was seen *now*."""
        self._seen |= {host: (number, now) for host, number in claims.items()}
        self._seen = {host: seen for host, seen in self._seen.items() if now - seen[1] < GONE_S}

    def claimed_beside(self, host: int) -> int:
        """Return what all but *host* claim."""
        return sum(number for other, (number, _) in self._seen.items() if other != host)
