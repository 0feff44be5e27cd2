"""Resolve the host names of a connection string in the hub: libpq would block every greenlet."""

import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

import gevent.socket
from psycopg2.extensions import make_dsn, parse_dsn

from greenline.errors import StoreDown
from greenline.hub import deadline


class Endpoint(NamedTuple):
    """
    One of the servers that libpq tries in turn; an empty field stands for libpq's default.

    :param host: a name, an address or a folder, str.
    :param hostaddr: an address, str.
    :param port: str.
    """

    host: str
    hostaddr: str
    port: str


class Unresolved(Exception):
    """
    No name of a connection string resolves.

    :param reasons: pairs of a name and the resolver's error text.
    """

    def __init__(self, reasons: Sequence[tuple[str, str]]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


def resolve(url: str) -> str:
    """
    Return *url* as a connection string with the address of each host.

    A name with several addresses is repeated for each, in the order in which they are to be tried.
    A name that does not resolve is left out, if another one does.

    :raises StoreDown: no name resolves.
    """
    given = parse_dsn(url)
    try:
        return with_endpoints(url, endpoints(given)) if has_names(given) else url
    except Unresolved as error:
        name, reason = error.reasons[-1]
        raise StoreDown(f"Postgres: {name} does not resolve: {reason}") from error


def has_names(given: Mapping[str, str]) -> bool:
    """Return whether *given* has a host name that libpq would have to look up."""
    return not given.get("hostaddr") and any(map(_is_name, given.get("host", "").split(",")))


def endpoints(given: Mapping[str, str]) -> list[Endpoint]:
    """
    Return the servers that libpq would try for the parameters *given*, with all addresses.

    :raises Unresolved: no name resolves.
    """
    addresses = given.get("hostaddr", "").split(",")
    hosts = given.get("host", "").split(",")
    ports = given.get("port", "").split(",")
    count = max(len(addresses), len(hosts))
    rows = zip(*(each * count if len(each) == 1 else each for each in (hosts, addresses, ports)))  # noqa: B905  (libpq refuses lists of different lengths)
    found: list[Endpoint] = []
    reasons: list[tuple[str, str]] = []
    for host, address, port in rows:
        if address or not _is_name(host):
            is_ip = bool(host) and not address and not _is_path(host)
            found.append(Endpoint(host, host if is_ip else address, port))
            continue
        try:
            found += [Endpoint(host, each, port) for each in _addresses(host)]
        except (OSError, UnicodeError) as error:
            reasons.append((host, _reason(error)))
    if not found:
        raise Unresolved(reasons)
    return found


def with_endpoints(url: str, these: Sequence[Endpoint]) -> str:
    """
    Return a connection string that names other servers.

    :param url: the connection string, str.
    :param these: the servers.
    """
    hosts, addresses, ports = (",".join(column) for column in zip(*these, strict=True))
    # host stays in addition to hostaddr: TLS compares the certificate with the name.
    return str(make_dsn(url, host=hosts, hostaddr=addresses, port=ports))


def _addresses(host: str) -> list[str]:
    # Encoded here, because gevent's thread would log a failure.
    ascii_host = host.encode("idna").decode()
    answers = deadline.wait_in(gevent.socket.getaddrinfo, ascii_host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in answers))


def _reason(error: OSError | UnicodeError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _is_name(host: str) -> bool:
    """Return whether libpq would have to look *host* up."""
    if not host or _is_path(host):
        return False
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


def _is_path(host: str) -> bool:
    return host.startswith(("/", "@"))
