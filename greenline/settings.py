"""The runtime's own variables: the only place in this package that reads the environment."""

import os
import re
from typing import NamedTuple

from greenline.budget.cpu import default_workers
from greenline.errors import ConfigError


class Variable(NamedTuple):
    """A variable of the environment: its name, its default and what it means."""

    name: str
    default: str
    meaning: str


PG_WAIT = Variable("GREENLINE_PG_WAIT", "greenline", "psycopg2's wait callback, or `psycogreen`")
HEAD_TIMEOUT = Variable(
    "GREENLINE_HEAD_TIMEOUT", "10", "seconds that the worker waits for the head of a request"
)
BODY_READ_TIMEOUT = Variable(
    "GREENLINE_BODY_READ_TIMEOUT", "15", "seconds that it waits for the next bytes of a body"
)
BODY_TIMEOUT = Variable(
    "GREENLINE_BODY_TIMEOUT", "300", "seconds that it waits for a body, all together"
)
WRITE_TIMEOUT = Variable(
    "GREENLINE_WRITE_TIMEOUT", "30", "seconds in which a client takes 64 KiB of its answer"
)
MAX_BODY_BYTES = Variable(
    "GREENLINE_MAX_BODY_BYTES", "104857600", "a larger body is refused with 413"
)
DRAIN_DELAY = Variable(
    "DRAIN_DELAY", "0", "seconds that a stopping service goes on accepting, not ready any more"
)
PROXY_KEEPALIVE = Variable(
    "GREENLINE_PROXY_KEEPALIVE",
    "",
    "seconds after which the proxy gives up an idle connection; unset: gunicorn's `keepalive`",
)
MAX_IN_PROGRESS = Variable(
    "GREENLINE_MAX_IN_PROGRESS",
    "auto",
    "requests that a worker works on at once; `auto` finds the number",
)
MAX_WAITING = Variable(
    "GREENLINE_MAX_WAITING",
    "",
    "requests that may wait beyond those; one more is a 503; unset: all, unless it is an overload",
)
MAX_WAIT = Variable(
    "GREENLINE_MAX_WAIT",
    "",
    "seconds that one of them waits before it is a 503; unset: no limit but `REQUEST_TIMEOUT`",
)
HEALTH_PATHS = Variable(
    "GREENLINE_HEALTH_PATHS", "/healthz,/readyz", "paths that are never refused"
)
BLOCKED_HUB_MS = Variable(
    "GREENLINE_BLOCKED_HUB_MS",
    "100",
    "a hub blocked for longer is logged with the stack; 0 is never",
)
ACCESS_LOG = Variable(
    "GREENLINE_ACCESS_LOG", "gunicorn", "`json` for lines of ours; `gunicorn` for its settings"
)
REQUIRE_HOST = Variable(
    "GREENLINE_REQUIRE_HOST", "1", "0 accepts a request of HTTP/1.1 without a valid Host header"
)
OFFLOAD = Variable(
    "GREENLINE_OFFLOAD",
    "",
    "runs in threads, too: `mysqlclient`, `package.module:function`; `off`: nothing does",
)
HOSTS = Variable("GREENLINE_HOSTS", "1", "hosts that share the databases; `auto` has them counted")
SURGE_HOSTS = Variable("GREENLINE_SURGE_HOSTS", "1", "hosts more while a deploy rolls")
PGBOUNCER_POOL_SIZE = Variable(
    "PGBOUNCER_POOL_SIZE", "", "what the pgbouncer in `DATABASE_URL` gives all hosts together"
)
MONGODB_MAX_CONNECTIONS = Variable(
    "MONGODB_MAX_CONNECTIONS", "", "what MongoDB allows, where it does not tell"
)
VARIABLES = (
    PG_WAIT, HEAD_TIMEOUT, BODY_READ_TIMEOUT, BODY_TIMEOUT, WRITE_TIMEOUT, MAX_BODY_BYTES,
    MAX_IN_PROGRESS, MAX_WAITING, MAX_WAIT, HEALTH_PATHS, DRAIN_DELAY, PROXY_KEEPALIVE,
    BLOCKED_HUB_MS, ACCESS_LOG, REQUIRE_HOST, OFFLOAD, HOSTS, SURGE_HOSTS, PGBOUNCER_POOL_SIZE,
    MONGODB_MAX_CONNECTIONS,
)  # fmt: skip
# What whoever hosts an application sets anyway: only the console script reads them here.
DATABASE_URL = Variable("DATABASE_URL", "", "Postgres")
MONGODB_URI = Variable("MONGODB_URI", "", "MongoDB")
WORKERS = Variable("WEB_CONCURRENCY", "", "workers; unset: as many as the CPU limit, or 2")
POSTGRES_POOL_SIZE = Variable("POSTGRES_POOL_SIZE", "", "what a worker's pool holds at most")
MONGODB_MAX_POOL_SIZE = Variable("MONGODB_MAX_POOL_SIZE", "", "the same for MongoDB")
REQUEST_TIMEOUT = Variable(
    "REQUEST_TIMEOUT", "", "seconds that the application may take for a request; then 504"
)

MAX_SECONDS = 86_400.0


class Limits(NamedTuple):
    """For how long a client may keep the worker waiting, and how much it may send."""

    head_s: float
    body_read_s: float
    body_s: float
    write_s: float
    max_body_bytes: int


def limits() -> Limits:
    """
    Return what a client may do.

    Raises:
        ConfigError: a value is no number, or out of its range.
    """
    return Limits(
        head_s=_seconds(HEAD_TIMEOUT),
        body_read_s=_seconds(BODY_READ_TIMEOUT),
        body_s=_seconds(BODY_TIMEOUT),
        write_s=_seconds(WRITE_TIMEOUT),
        max_body_bytes=_count(MAX_BODY_BYTES),
    )


def pg_wait() -> str:
    """
    Return whose wait callback psycopg2 gets.

    Raises:
        ConfigError: neither ``greenline`` nor ``psycogreen``.
    """
    return _choice(PG_WAIT, "greenline", "psycogreen")


class Admission(NamedTuple):
    """How many requests a worker works on, and how many wait; None: found, or no limit."""

    max_in_progress: int | None
    max_waiting: int | None
    max_wait_s: float | None
    timeout_s: float | None
    health_paths: tuple[str, ...]


def admission() -> Admission:
    """
    Return what the worker takes in.

    Raises:
        ConfigError: a value is no number, or out of its range.
    """
    is_auto = _text(MAX_IN_PROGRESS).lower() == "auto"
    return Admission(
        max_in_progress=None if is_auto else _count(MAX_IN_PROGRESS),
        max_waiting=0 if _text(MAX_WAITING) == "0" else _optional_count(MAX_WAITING),
        max_wait_s=_seconds(MAX_WAIT) if _text(MAX_WAIT) else None,
        timeout_s=request_timeout_s(),
        health_paths=tuple(path.strip() for path in _text(HEALTH_PATHS).split(",")),
    )


class Sizing(NamedTuple):
    """What the connection budget is computed from; None is not told, and no hosts are counted."""

    workers: int
    hosts: int | None
    surge_hosts: int
    postgres_pool_size: int | None
    pgbouncer_pool_size: int | None
    mongodb_max_connections: int | None
    mongodb_max_pool_size: int | None


def sizing() -> Sizing:
    """
    Return what the connection budget is computed from.

    Raises:
        ConfigError: a value is no number, or out of its range.
    """
    return Sizing(
        workers=_optional_count(WORKERS) or default_workers(),
        hosts=None if _text(HOSTS).lower() == "auto" else _count(HOSTS),
        surge_hosts=0 if _text(SURGE_HOSTS) == "0" else _count(SURGE_HOSTS),
        postgres_pool_size=_optional_count(POSTGRES_POOL_SIZE),
        pgbouncer_pool_size=_optional_count(PGBOUNCER_POOL_SIZE),
        mongodb_max_connections=_optional_count(MONGODB_MAX_CONNECTIONS),
        mongodb_max_pool_size=_optional_count(MONGODB_MAX_POOL_SIZE),
    )


def databases() -> tuple[str, str]:
    """Return the addresses of Postgres and MongoDB; one that is not set, or ``off``, is empty."""
    url, uri = ("" if text == "off" else text for text in map(_text, (DATABASE_URL, MONGODB_URI)))
    return url, uri


def blocked_hub_s() -> float | None:
    """
    Return after how many seconds a hub counts as blocked, None for never.

    Raises:
        ConfigError: no whole number of milliseconds.
    """
    return None if _text(BLOCKED_HUB_MS) == "0" else _count(BLOCKED_HUB_MS) / 1000


def logs_json() -> bool:
    """
    Return whether the access log is ours.

    Raises:
        ConfigError: neither ``json`` nor ``gunicorn``.
    """
    return _choice(ACCESS_LOG, "gunicorn", "json") == "json"


def requires_host() -> bool:
    """
    Return whether a request of HTTP/1.1 without a valid Host header is refused.

    :raises ConfigError: neither 0 nor 1.
    """
    return _choice(REQUIRE_HOST, "0", "1") == "1"


def offload() -> tuple[str, ...] | None:
    """
    Return the names of what runs in threads besides what always does; None: nothing does.

    :raises ConfigError: a name is neither ``mysqlclient`` nor ``package.module:function``.
    """
    text = _text(OFFLOAD)
    if text.lower() == "off":
        return None
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        if name != "mysqlclient" and not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", name):
            raise ConfigError(
                f"{OFFLOAD.name}: {name!r} is neither mysqlclient nor package.module:function, "
                "nor off alone"
            )
    return names


def check() -> None:
    """
    Read every variable, so that a wrong one is told before a worker starts.

    Raises:
        ConfigError: names it.
    """
    for read in (
        pg_wait, limits, admission, drain_delay_s, proxy_keepalive_s, blocked_hub_s, logs_json,
        requires_host,
        request_timeout_s,
        offload,
    ):  # fmt: skip
        read()


def drain_delay_s() -> float:
    """
    Return for how long a stopping service goes on accepting.

    Raises:
        ConfigError: no number of seconds.
    """
    is_none = re.fullmatch(r"0+(\.0*)?", _text(DRAIN_DELAY))
    return 0.0 if is_none else _seconds(DRAIN_DELAY)


def proxy_keepalive_s() -> float | None:
    """
    Return the proxy's own idle time, None when nobody told.

    Raises:
        ConfigError: no number of seconds.
    """
    return _seconds(PROXY_KEEPALIVE) if _text(PROXY_KEEPALIVE) else None


def request_timeout_s() -> float | None:
    """
    Return how long the application may take for a request, None where nothing limits it.

    Raises:
        ConfigError: no number of seconds.
    """
    return _seconds(REQUEST_TIMEOUT) if _text(REQUEST_TIMEOUT) else None


def is_told(variable: Variable) -> bool:
    """Return whether the environment has the variable, which would have its default otherwise."""
    return bool(os.environ.get(variable.name, "").strip())


def _text(variable: Variable) -> str:
    return os.environ.get(variable.name, "").strip() or variable.default


def _choice(variable: Variable, one: str, other: str) -> str:
    value = _text(variable).lower()
    if value not in (one, other):
        raise ConfigError(f"{variable.name}: {value!r} is neither {one} nor {other}")
    return value


def _seconds(variable: Variable) -> float:
    text = _text(variable)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MAX_SECONDS:
        raise ConfigError(
            f"{variable.name}: {text!r} is no number of seconds above 0, up to {MAX_SECONDS:.0f}"
        )
    return value


def _count(variable: Variable) -> int:
    text = _text(variable)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"{variable.name}: {text!r} is no whole number above 0")
    return int(text)


def _optional_count(variable: Variable) -> int | None:
    return _count(variable) if _text(variable) else None
