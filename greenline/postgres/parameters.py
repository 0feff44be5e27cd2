"""
Read the parameters that libpq would use, from the connection string, a service file and the
environment.

Only those that must be known before libpq connects: the address, and the timeout of the connect.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psycopg2
from psycopg2.extensions import libpq_version, parse_dsn

ENVIRONMENT = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "connect_timeout": "PGCONNECT_TIMEOUT",
}
DEFAULT_PORT = "5432"
# Up to version 16 libpq waits two seconds for a connect_timeout of 1.
SECONDS_EXACT_SINCE = 170_000


def parameters(dsn: str) -> dict[str, str]:
    """
    Return host, hostaddr, port and connect_timeout as libpq uses them for *dsn*.

    The connection string has precedence, then its service, then the environment. Folders compiled
    into libpq are not known here: a service file must be in the home folder, or be named by
    ``PGSERVICEFILE`` or ``PGSYSCONFDIR``.

    :raises psycopg2.ProgrammingError: *dsn* is malformed.
    """
    given = parse_dsn(dsn)
    service = given.get("service") or os.environ.get("PGSERVICE")
    if service:
        given = {**_service(service), **given}
    named = {
        name: os.environ[variable]
        for name, variable in ENVIRONMENT.items()
        if name not in given and variable in os.environ
    }
    return {"port": DEFAULT_PORT, **named, **given}


def connect_timeout_s(given: Mapping[str, str]) -> float | None:
    """
    Return the number of seconds for which libpq may try one address, None for no limit.

    :raises psycopg2.OperationalError: it is not a number.
    """
    text = given.get("connect_timeout", "")
    try:
        seconds = int(text or 0)
    except ValueError:
        # libpq's own text, which an application may look for.
        raise psycopg2.OperationalError(
            f'invalid integer value "{text}" for connection option "connect_timeout"\n'
        ) from None
    if seconds == 1 and libpq_version() < SECONDS_EXACT_SINCE:
        return 2.0
    return float(seconds) if seconds > 0 else None


def _service(name: str) -> dict[str, str]:
    """Return the parameters of the service *name*, {} if it is not found."""
    for path in _service_files():
        with suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()
            if found := _section(lines, name):
                return found
    # Not an error here: libpq reports an unknown service itself.
    return {}


def _service_files() -> Iterator[Path]:
    if "PGSERVICEFILE" in os.environ:
        yield Path(os.environ["PGSERVICEFILE"])
    else:
        yield Path("~/.pg_service.conf").expanduser()
    if "PGSYSCONFDIR" in os.environ:
        yield Path(os.environ["PGSYSCONFDIR"], "pg_service.conf")


def _section(lines: list[str], name: str) -> dict[str, str]:
    """
    Return the parameters under ``[name]``, as libpq reads them: ``key=value``, without blanks.
    """
    found: dict[str, str] = {}
    is_in = False
    for line in map(str.strip, lines):
        if line.startswith("["):
            is_in = line == f"[{name}]"
        elif is_in and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, value)
    return found
