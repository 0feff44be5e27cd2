"""Describe a deployment by frozen records, in which each value has its source."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)  # a Sourced is frozen

# A unix socket's path, a host and a port, or a descriptor that gunicorn inherits.
Address = str | tuple[str, int] | int


@dataclass(frozen=True)
class Sourced(Generic[T_co]):
    """
    Hold a value and its source.

    :param value: the value.
    :param where: its ``file:line``, or the name of a variable, str.
    :param is_set: it was set, bool, default True; False for a default.
    """

    value: T_co
    where: str
    is_set: bool = True

    @property
    def by_default(self) -> str:
        """Return a suffix that marks a default in a sentence about the value."""
        return "" if self.is_set else ", by default"


@dataclass(frozen=True)
class DirectiveLocation:
    """
    Locate a directive of nginx.

    :param where: its ``file:line``, str.
    :param text: its name and first arguments, str.
    """

    where: str
    text: str


@dataclass(frozen=True)
class Upstream:
    """
    An upstream block of nginx; without one, the server that ``proxy_pass`` names.

    :param where: its ``file:line``, str.
    :param name: str; empty without a block.
    :param servers: the addresses of the servers.
    :param lines: the arguments of each ``server`` line.
    :param max_fails: of each server, int.
    :param keepalive: idle connections that each nginx worker keeps, int; 0 if it is not set,
        which is off before nginx 1.29.7, and 32 since.
    :param keepalive_timeout_s: seconds until nginx closes an idle connection, float.
    """

    where: str
    name: str
    servers: tuple[Address, ...]
    lines: tuple[Sourced[tuple[str, ...]], ...]
    max_fails: tuple[Sourced[int], ...]
    keepalive: Sourced[int]
    keepalive_timeout_s: Sourced[float]

    @property
    def is_remote(self) -> bool:
        """Return whether one of the servers is on another machine."""
        return any(isinstance(one, tuple) and not is_loopback(one[0]) for one in self.servers)


@dataclass(frozen=True)
class Route:
    """
    A location with a ``proxy_pass``, and its directives, inherited ones included.

    :param where: its ``file:line``, str.
    :param scheme: ``http://`` or ``https://``, str.
    :param uri: the part of ``proxy_pass`` behind the server, str; mostly empty.
    :param place: the directive before which a missing directive of the location belongs.
    :param headers_place: the directive before which a missing ``proxy_set_header`` belongs.
    :param server_place: the directive before which an upstream block belongs; None if in
        another file.
    :param upstream: the servers.
    :param http_version: ``proxy_http_version``, str.
    :param headers: those of ``proxy_set_header`` by the lower-case name.
    :param connect_timeout_s: ``proxy_connect_timeout``, float.
    :param read_timeout_s: ``proxy_read_timeout``, float.
    :param max_body_bytes: ``client_max_body_size``, int.
    :param request_buffering: ``proxy_request_buffering``, bool.
    :param buffering: ``proxy_buffering``, bool.
    :param next_upstream: the conditions of ``proxy_next_upstream``.
    :param next_tries: ``proxy_next_upstream_tries``, int; 0 is no limit but the number of
        servers.
    :param replaced: statuses of the service that a page of nginx replaces.
    :param real_ip_from: proxies whose client addresses are trusted.
    :param has_real_ip: the client's address comes from a trusted proxy before this one, bool.
    """

    where: str
    scheme: str
    uri: str
    place: DirectiveLocation
    headers_place: DirectiveLocation
    server_place: DirectiveLocation | None
    upstream: Upstream
    http_version: Sourced[str]
    headers: Mapping[str, Sourced[str]]
    connect_timeout_s: Sourced[float]
    read_timeout_s: Sourced[float]
    max_body_bytes: Sourced[int]
    request_buffering: Sourced[bool]
    buffering: Sourced[bool]
    next_upstream: Sourced[frozenset[str]]
    next_tries: Sourced[int]
    replaced: Sourced[frozenset[str]]
    real_ip_from: tuple[Sourced[str], ...]
    has_real_ip: bool


@dataclass(frozen=True)
class Nginx:
    """
    An nginx.conf.

    :param file: its path, str.
    :param routes: the locations that lead to gunicorn.
    :param unread: arguments of ``proxy_pass`` in which a variable names the server.
    :param without_upgrade: variables of a ``map``, with their value for a request without
        ``Upgrade``.
    :param processes: ``worker_processes``, int; None is one for each core.
    :param events: the ``events`` block; None in a part of a configuration.
    :param worker_connections: int; None without an ``events`` block.
    :param descriptors: ``worker_rlimit_nofile``, int; 0 if it is not set.
    """

    file: str
    routes: tuple[Route, ...]
    unread: tuple[Sourced[str], ...]
    without_upgrade: Mapping[str, Sourced[str]]
    processes: int | None
    events: DirectiveLocation | None
    worker_connections: Sourced[int] | None
    descriptors: Sourced[int]


@dataclass(frozen=True)
class Gunicorn:
    """
    A gunicorn.conf.py as gunicorn reads it, with ``GUNICORN_CMD_ARGS``: gunicorn's settings,
    and two facts of our own, ``is_green`` and ``open_sockets``.

    :param file: its path, str.
    :param bind: the addresses.
    :param worker_class: its name, str.
    :param is_green: the worker is Greenline's, bool.
    :param workers: int.
    :param worker_connections: int.
    :param keepalive_s: float.
    :param graceful_timeout_s: float.
    :param timeout_s: float.
    :param preload_app: bool.
    :param forwarded_allow_ips: addresses of trusted proxies.
    :param worker_tmp_dir: a path, str, or None.
    :param umask: int.
    :param open_sockets: paths of unix sockets to which every local user may connect.
    :param max_requests: int; 0 is no limit.
    :param max_requests_jitter: int.
    """

    file: str
    bind: Sourced[tuple[Address, ...]]
    worker_class: Sourced[str]
    is_green: bool
    workers: Sourced[int]
    worker_connections: Sourced[int]
    keepalive_s: Sourced[float]
    graceful_timeout_s: Sourced[float]
    timeout_s: Sourced[float]
    preload_app: Sourced[bool]
    forwarded_allow_ips: Sourced[tuple[str, ...]]
    worker_tmp_dir: Sourced[str | None]
    umask: Sourced[int]
    open_sockets: tuple[str, ...]
    max_requests: Sourced[int]
    max_requests_jitter: Sourced[int]


@dataclass(frozen=True)
class Service:
    """
    The settings of the service in its environment; None: not set.

    :param request_timeout_s: REQUEST_TIMEOUT.
    :param drain_delay_s: DRAIN_DELAY.
    :param proxy_keepalive_s: GREENLINE_PROXY_KEEPALIVE.
    :param max_body_bytes: GREENLINE_MAX_BODY_BYTES; a value of None: no limit.
    :param max_in_progress: GREENLINE_MAX_IN_PROGRESS; None: ``auto``.
    :param max_waiting: GREENLINE_MAX_WAITING; None: no limit.
    :param workers: WEB_CONCURRENCY.
    :param statement_timeout_s: statement_timeout in the options of DATABASE_URL.
    """

    request_timeout_s: Sourced[float] | None
    drain_delay_s: Sourced[float]
    proxy_keepalive_s: Sourced[float] | None
    max_body_bytes: Sourced[int | None]
    max_in_progress: int | None
    max_waiting: int | None
    workers: Sourced[int] | None
    statement_timeout_s: Sourced[float] | None


@dataclass(frozen=True)
class Facts:
    """
    Hold all facts.

    :param nginx: the proxy.
    :param gunicorn: the server.
    :param service: the settings in the environment.
    :param routes: the routes of *nginx* that lead to *gunicorn*; all, if none does.
    :param cpus: what this machine or its container reports as the number of CPUs.
    """

    nginx: Nginx
    gunicorn: Gunicorn
    service: Service
    routes: tuple[Route, ...]
    cpus: frozenset[int]

    @property
    def workers(self) -> Sourced[int]:
        """Return the number of workers; its source is WEB_CONCURRENCY where that decides."""
        own, variable = self.gunicorn.workers, self.service.workers
        # A gunicorn.conf.py may read the variable itself.
        is_from_variable = variable and (not own.is_set or own.value == variable.value)
        return variable if variable and is_from_variable else own

    @property
    def keepalive_s(self) -> float:
        """Return the seconds after which the worker closes an idle connection, 0 for at once."""
        found = self.service.proxy_keepalive_s
        own_s = self.gunicorn.keepalive_s.value
        # GREENLINE_PROXY_KEEPALIVE extends gunicorn's keepalive, in Greenline's worker only.
        return max(own_s, found.value) if own_s and found and self.gunicorn.is_green else own_s


def is_everywhere(host: str) -> bool:
    """Return whether a server bound to *host* listens on all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name; an empty one binds all addresses, too
        return not host


def is_loopback(host: str) -> bool:
    """Return whether *host*, a name, an address or a network, is only this machine."""
    try:
        return ipaddress.ip_network(host).is_loopback
    except ValueError:
        return host == "localhost"


def reaches(server: Address, bound: Address) -> bool:
    """
    Return whether a connection to *server* may reach *bound*.

    :param server: an address in nginx.conf.
    :param bound: an address in gunicorn's ``bind``.
    """
    if isinstance(bound, int):
        return True  # an inherited descriptor, whose address is unknown
    if isinstance(server, tuple) and isinstance(bound, tuple):
        (asked, port), (host, own_port) = server, bound
        return port == own_port and (is_everywhere(host) or _is_near(asked, host))
    return server == bound


def _is_near(asked: str, host: str) -> bool:
    if is_loopback(asked) and is_loopback(host):
        # "localhost" may be IPv4 or IPv6; two addresses must be of the same family.
        return "localhost" in (asked, host) or (":" in asked) == (":" in host)
    # Two addresses that are not loopback may be one machine: names are not looked up.
    return is_loopback(asked) == is_loopback(host)


def shown(address: Address) -> str:
    """Return *address* as nginx spells it."""
    if isinstance(address, tuple):
        host, port = address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"unix:{address}" if isinstance(address, str) else f"fd://{address}"
