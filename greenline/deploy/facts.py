"""What is known of a deployment, as frozen records; each value tells where it comes from."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

# A unix socket's path, a host and a port, or a descriptor that gunicorn was given.
Address = str | tuple[str, int] | int


@dataclass(frozen=True)
class Told(Generic[T]):
    """A value, and its ``file:line`` or variable; *is_told* is false for a default."""

    value: T
    where: str
    is_told: bool = True

    @property
    def by_default(self) -> str:
        """Return what a sentence about the value says more where nobody told it."""
        return "" if self.is_told else ", by default"


@dataclass(frozen=True)
class Upstream:
    """Servers that nginx asks; without a block of that name it is the one in ``proxy_pass``."""

    where: str
    servers: tuple[Address, ...]
    max_fails: tuple[Told[int], ...]  # of each server
    keepalive: Told[int]  # 0 where nobody told: off before nginx 1.29.7, 32 since
    keepalive_timeout_s: Told[float]

    @property
    def is_remote(self) -> bool:
        """Return whether one of the servers is asked over a network."""
        return any(isinstance(one, tuple) and not is_loopback(one[0]) for one in self.servers)


@dataclass(frozen=True)
class Route:
    """A location that proxies, with what it says and what it inherits."""

    where: str
    upstream: Upstream
    http_version: Told[str]
    headers: Mapping[str, Told[str]]  # of proxy_set_header, by the name in small letters
    headers_where: str
    connect_timeout_s: Told[float]
    read_timeout_s: Told[float]
    max_body_bytes: Told[int]
    request_buffering: Told[bool]
    buffering: Told[bool]
    next_upstream: Told[frozenset[str]]
    next_tries: Told[int]  # 0 is as many as there are servers
    replaced: Told[frozenset[str]]  # statuses of the service that a page of nginx replaces
    real_ip_from: tuple[Told[str], ...]  # who is trusted to say the client's address
    has_real_ip: bool  # the client's address is what a trusted proxy before this one says


@dataclass(frozen=True)
class Nginx:
    """An nginx.conf."""

    file: str
    routes: tuple[Route, ...]
    unread: tuple[Told[str], ...]  # of proxy_pass, where a variable names the server
    without_upgrade: Mapping[str, Told[str]]  # variables of a map, for a request without Upgrade
    processes: int | None  # None is as many as there are cores
    worker_connections: Told[int] | None  # None of a part of a configuration, without events
    descriptors: Told[int]  # worker_rlimit_nofile; 0 where nobody told


@dataclass(frozen=True)
class Gunicorn:
    """A gunicorn.conf.py, as gunicorn itself reads it, with ``GUNICORN_CMD_ARGS``."""

    file: str
    bind: Told[tuple[Address, ...]]
    worker_class: Told[str]
    is_green: bool
    workers: Told[int]
    worker_connections: Told[int]
    keepalive_s: Told[float]
    graceful_timeout_s: Told[float]
    timeout_s: Told[float]
    preload_app: Told[bool]
    forwarded_allow_ips: Told[tuple[str, ...]]
    worker_tmp_dir: Told[str | None]


@dataclass(frozen=True)
class Service:
    """What the environment tells of the service; None is not told."""

    request_timeout_s: Told[float] | None
    drain_delay_s: Told[float]
    proxy_keepalive_s: Told[float] | None
    max_body_bytes: Told[int]
    max_in_progress: int | None
    statement_timeout_s: Told[float] | None


@dataclass(frozen=True)
class Facts:
    """All of it; *routes* are those of nginx's that ask this gunicorn, all where none does."""

    nginx: Nginx
    gunicorn: Gunicorn
    service: Service
    routes: tuple[Route, ...]

    @property
    def keepalive_s(self) -> float:
        """Return after how many seconds the worker closes an idle connection, 0 for at once."""
        told = self.service.proxy_keepalive_s
        own_s = self.gunicorn.keepalive_s.value
        return max(own_s, told.value) if own_s and told and self.gunicorn.is_green else own_s


def is_everywhere(host: str) -> bool:
    """Return whether who binds *host* listens on all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def is_loopback(host: str) -> bool:
    """Return whether *host*, a name, an address or a network, is this machine alone."""
    try:
        return ipaddress.ip_network(host).is_loopback
    except ValueError:
        return host == "localhost"


def shown(address: Address) -> str:
    """Return *address* as nginx spells it."""
    if isinstance(address, tuple):
        host, port = address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"unix:{address}" if isinstance(address, str) else f"fd://{address}"
