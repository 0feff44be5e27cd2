"""Resolve the host names of a connection string in the hub: libpq would block every greenlet."""

import socket
from ipaddress import ip_address

import gevent.socket
from psycopg2.extensions import make_dsn, parse_dsn

from greenline.errors import StoreDown


def resolve(url: str) -> str:
    """
    Return *url* as a connection string with the address of every host.

    ``host`` stays beside ``hostaddr``: TLS checks the certificate against the name. A name with
    several addresses stands once for each, in the order in which they are to be tried; one of
    several names that does not resolve is left out.

    Raises:
        StoreDown: no name resolves.
    """
    given = parse_dsn(url)
    hosts = given.get("host", "").split(",")
    if "hostaddr" in given or all(not _is_name(host) for host in hosts):
        return url
    ports = given.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    found: list[tuple[str, str, str]] = []
    problem: OSError | UnicodeError | None = None
    for host, port in zip(hosts, ports, strict=False):
        if not _is_name(host):
            found.append((host, "" if _is_path(host) else host, port))
            continue
        try:
            found += [(host, address, port) for address in _addresses(host)]
        except (OSError, UnicodeError) as error:
            problem = error
    if not found:
        raise StoreDown(f"Postgres: {hosts[0]} does not resolve: {problem}") from problem
    named, addresses, numbers = (",".join(column) for column in zip(*found, strict=True))
    return str(make_dsn(url, host=named, hostaddr=addresses, port=numbers))


def _addresses(host: str) -> list[str]:
    ascii_host = host.encode("idna").decode()  # here, not in gevent's thread: that logs a failure
    answers = gevent.socket.getaddrinfo(ascii_host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in answers))


def _is_name(host: str) -> bool:
    """Return whether libpq would have to ask for the address."""
    if not host or _is_path(host):
        return False
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


def _is_path(host: str) -> bool:
    return host.startswith(("/", "@"))
