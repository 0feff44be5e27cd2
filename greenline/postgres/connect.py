"""
Connect to Postgres within a limit.

libpq's own ``connect_timeout`` has no effect in green mode.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import gevent
import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

from greenline.errors import ConfigError, DeadlineExceeded, StoreDown
from greenline.hub import deadline
from greenline.postgres import backlog
from greenline.postgres.connection import Connection
from greenline.postgres.errors import first_line, translate
from greenline.postgres.limits import APPLICATION
from greenline.postgres.resolve import resolve

# A peer that vanished without a reset is noticed after 20 s without a packet from it, whether data
# stays unacknowledged or the probes do, which begin after 10 s of silence.
KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
# A prepared statement is planned once. By default Postgres plans an EXECUTE with a LIMIT anew each
# time, because the plan for that very limit looks cheaper, and the planning costs more than it
# saves.
PLAN_ONCE = "-c plan_cache_mode=force_generic_plan"
# The same on the server's side: the backend of a lost client, in a statement or idle, ends within a
# second, or within 20 if the network was cut.
NOTICE_LOSS = (
    "-c client_connection_check_interval=1000 -c tcp_keepalives_idle=10 "
    "-c tcp_keepalives_interval=3 -c tcp_keepalives_count=3 -c tcp_user_timeout=20000"
)


class Connect(Protocol):
    """A function that connects, and passes a connection that failed half-way to *abandon*."""

    def __call__(self, *, abandon: Callable[[Connection], None]) -> Connection: ...


def check_url(url: str) -> str:
    """
    Return *url* if libpq can read it.

    :raises ConfigError: it cannot, or would misread it; the text does not contain the URL.
    """
    try:
        given = parse_dsn(url)
    except psycopg2.ProgrammingError:
        # Without the cause: libpq's text may contain the password.
        raise ConfigError("libpq cannot read this URL; are special characters encoded?") from None
    # A password with an unencoded / or ? is taken in part for the port, the name or an option.
    ports = given.get("port", "").split(",")
    if "@" in given.get("dbname", "") or any(port and not port.isdigit() for port in ports):
        raise ConfigError("libpq would misread this URL; are special characters encoded?")
    return url


def server_of(url: str) -> str:
    """
    Return the hosts and ports of *url* as they are spelled, which identify the server.

    Two spellings of one server, such as its name and its address, count as two servers.
    """
    given = parse_dsn(url)
    where = given.get("hostaddr") or given.get("host") or os.environ.get("PGHOST", "")
    return f"{where}:{given.get('port') or os.environ.get('PGPORT', '5432')}"


def reads_any_host(url: str) -> bool:
    """Return whether *url* names several hosts, of which any that answers is taken."""
    given = parse_dsn(url)
    attributes = given.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS")
    return "," in server_of(url) and attributes not in ("read-write", "primary")


DATABASE_VARIABLES = {"dbname": "PGDATABASE", "user": "PGUSER", "service": "PGSERVICE"}


def database_of(url: str) -> str:
    """Return the name of the database of *url* with its server, which identify it."""
    given = {name: os.environ.get(variable) for name, variable in DATABASE_VARIABLES.items()}
    given |= parse_dsn(url)
    name = given["dbname"] or given["user"] or os.geteuid()
    return f"{server_of(url)}/{name}" + (f" of {given['service']}" if given["service"] else "")


def connect(
    url: str,
    timeout_s: float,
    statement_timeout_s: float | None = 0,
    *,
    application: str = APPLICATION,
    abandon: Callable[[Connection], None] = Connection.close,
) -> Connection:
    """
    Return a new connection, within *timeout_s* or the rest of the request's deadline.

    Parameters in the URL take precedence over the defaults here.

    :param url: the connection URL, str.
    :param timeout_s: seconds for the connect, float.
    :param statement_timeout_s: seconds after which the server itself ends a statement, float, so
        that one whose request has ended does not work on; 0 for no limit; None to send no options,
        which a pgbouncer refuses. Default 0.
    :param application: the application's name unless the URL has one, str. Default ``greenline``.
    :param abandon: is called with each connection that failed half-way, for which the server may
        have a backend. Default: close it.
    :returns: a :class:`Connection`.
    :raises StoreDown: the server refused, failed or did not answer.
    :raises DeadlineExceeded: the request's deadline passed first.
    """
    limit_s = deadline.remaining(timeout_s)
    given = parse_dsn(url)
    ours = {name: value for name, value in KEEPALIVES.items() if name not in given}
    if statement_timeout_s is not None:
        statement_timeout = f"-c statement_timeout={int(statement_timeout_s * 1000)}"
        options = given.get("options", "")
        ours["options"] = f"{PLAN_ONCE} {NOTICE_LOSS} {statement_timeout} {options}".strip()
    begun: list[Connection] = []
    try:
        with gevent.Timeout(limit_s) as timeout:
            dsn = make_dsn(resolve(url), fallback_application_name=application, **ours)
            # psycopg2 drops a connection whose connect fails. _begin() keeps it, so that the pool
            # can wait for the end of its backend before it counts the slot as free.
            conn: Connection = backlog.connect(dsn, partial(_begin, begun))
            conn.settle()
            return conn
    except BaseException as error:
        for half in begun:
            abandon(half)
        if error is timeout and deadline.remaining() == 0:
            raise DeadlineExceeded from error
        if error is timeout:
            message = f"Postgres: no answer within {limit_s:.1f} s of connecting"
            raise StoreDown(message) from error
        if isinstance(error, psycopg2.ProgrammingError):
            raise StoreDown(f"Postgres: {first_line(error)}") from error
        if isinstance(error, psycopg2.Error):
            raise translate(error) from error
        raise


def _begin(begun: list[Connection], dsn: str) -> Connection:
    """Make a connection and keep it in *begun* before it connects."""
    conn = Connection.__new__(Connection)
    begun[:] = [conn]  # an earlier one failed with EAGAIN: no backend
    conn.__init__(dsn)  # type: ignore[misc]
    return conn
