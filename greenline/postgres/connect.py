"""Connect to Postgres within a limit, which libpq's own ``connect_timeout`` is not when green."""

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

# A peer that vanished without a reset is noticed after 20 s without a word from it, be it that
# what we sent stays unacknowledged or the probes, which begin after 10 s of silence.
KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
# What is prepared is planned once. Left alone, Postgres plans an EXECUTE with a LIMIT anew each
# time, because the plan for this very limit looks cheaper: that costs more than it brings.
PLAN_ONCE = "-c plan_cache_mode=force_generic_plan"
# The same from the server's side: what a lost client leaves behind, in a statement or idle, is gone
# within a second, or 20 through a network that was cut.
NOTICE_LOSS = (
    "-c client_connection_check_interval=1000 -c tcp_keepalives_idle=10 "
    "-c tcp_keepalives_interval=3 -c tcp_keepalives_count=3 -c tcp_user_timeout=20000"
)


class Connect(Protocol):
    """What makes a connection, and hands over one that it gave up half-way."""

    def __call__(self, *, abandon: Callable[[Connection], None]) -> Connection: ...


def check_url(url: str) -> str:
    """
    Return *url*, or refuse what libpq cannot read; its reason may hold the password.

    Raises:
        ConfigError: without the text of the URL.
    """
    try:
        given = parse_dsn(url)
    except psycopg2.ProgrammingError:
        raise ConfigError("libpq cannot read this URL; are special characters encoded?") from None
    # A password with an unencoded / or ? in it lands in the port, the name or an option.
    ports = given.get("port", "").split(",")
    if "@" in given.get("dbname", "") or any(port and not port.isdigit() for port in ports):
        raise ConfigError("libpq would misread this URL; are special characters encoded?")
    return url


def server_of(url: str) -> str:
    """
    Return what tells one server from another in *url*: hosts and ports, as they are spelled.

    Two spellings of one server are two servers here: a host's name and its address, for instance.
    """
    given = parse_dsn(url)
    where = given.get("hostaddr") or given.get("host") or os.environ.get("PGHOST", "")
    return f"{where}:{given.get('port') or os.environ.get('PGPORT', '5432')}"


def connect(
    url: str,
    timeout_s: float,
    statement_timeout_s: float | None = 0,
    *,
    application: str = APPLICATION,
    abandon: Callable[[Connection], None] = Connection.close,
) -> Connection:
    """
    Return a new connection, after at most *timeout_s* seconds or what is left of the deadline.

    What the URL says wins over ours. The server itself ends a statement after
    *statement_timeout_s* seconds, so that one whose request is over does not work on; 0 is never,
    and None says nothing: pgbouncer refuses a client that sends options.
    *application* is the application's name unless the URL has one. *abandon* is given what was
    connected half-way: the server may have a backend for it.

    Raises:
        StoreDown: the server refused, failed or did not answer.
        DeadlineExceeded: the request's time was over first.
    """
    limit_s = deadline.remaining(timeout_s)
    given = parse_dsn(url)
    ours = {name: value for name, value in KEEPALIVES.items() if name not in given}
    if statement_timeout_s is not None:
        statement_timeout = f"-c statement_timeout={int(statement_timeout_s * 1000)}"
        said = given.get("options", "")
        ours["options"] = f"{PLAN_ONCE} {NOTICE_LOSS} {statement_timeout} {said}".strip()
    begun: list[Connection] = []
    try:
        with gevent.Timeout(limit_s) as timeout:
            dsn = make_dsn(resolve(url), fallback_application_name=application, **ours)
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
    """Show the connection before it is connected: psycopg2 drops one that it cannot connect."""
    conn = Connection.__new__(Connection)
    begun[:] = [conn]  # what was begun before failed by itself: there is no backend
    conn.__init__(dsn)  # type: ignore[misc]
    return conn
