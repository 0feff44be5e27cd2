"""
Define and read the environment variables of the runtime; no other module reads these.

Internal: applications import nothing from here.
"""

import os
import re
from importlib.util import find_spec
from typing import NamedTuple

from greenline.budget.cpu import default_workers
from greenline.errors import ConfigError


class Variable(NamedTuple):
    """
    Describe an environment variable.

    :param name: its name, str.
    :param default: the text that applies if it is unset or blank, str.
    :param meaning: one line of documentation, str.
    """

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
# Variables of the application. The runtime reads only REQUEST_TIMEOUT, the console script all.
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
    """
    Limit the time and the bytes that a client may take.

    :param head_s: seconds for the head of a request, float.
    :param body_read_s: seconds for the next bytes of a body, float.
    :param body_s: seconds for a whole body, float.
    :param write_s: seconds in which a client reads 64 KiB of its answer, float.
    :param max_body_bytes: size of the largest accepted body, int.
    """

    head_s: float
    body_read_s: float
    body_s: float
    write_s: float
    max_body_bytes: int


def limits() -> Limits:
    """
    Return the limits of a client.

    :raises ConfigError: a value is not a number, or out of its range.
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
    Return the name of psycopg2's wait callback, ``greenline`` or ``psycogreen``.

    :raises ConfigError: the value is neither of them, or psycogreen is not installed.
    """
    chosen = _choice(PG_WAIT, "greenline", "psycogreen")
    # No extra of the package brings it, because nothing else needs it.
    if chosen == "psycogreen" and find_spec("psycogreen") is None:
        raise ConfigError(f"{PG_WAIT.name}=psycogreen needs psycogreen: pip install psycogreen")
    return chosen


class Admission(NamedTuple):
    """
    Limit the requests that a worker accepts.

    :param max_in_progress: requests in progress, int; None: the worker adapts the number.
    :param max_waiting: waiting requests, int; None: no limit.
    :param max_wait_s: seconds that a request may wait, float; None: no limit.
    :param timeout_s: seconds that the application may take for a request, float; None: no limit.
    :param health_paths: paths that are never refused.
    """

    max_in_progress: int | None
    max_waiting: int | None
    max_wait_s: float | None
    timeout_s: float | None
    health_paths: tuple[str, ...]


def admission() -> Admission:
    """
    Return the limits of the worker's admission.

    :raises ConfigError: a value is not a number, or out of its range.
    """
    is_auto = _text(MAX_IN_PROGRESS).lower() == "auto"
    return Admission(
        max_in_progress=None if is_auto else _count(MAX_IN_PROGRESS),
        # 0 is valid here, and means that no request may wait; _count requires 1 or more.
        max_waiting=0 if _text(MAX_WAITING) == "0" else _optional_count(MAX_WAITING),
        max_wait_s=_seconds(MAX_WAIT) if _text(MAX_WAIT) else None,
        timeout_s=request_timeout_s(),
        # A trailing comma adds no empty path.
        health_paths=tuple(filter(None, map(str.strip, _text(HEALTH_PATHS).split(",")))),
    )


class Sizing(NamedTuple):
    """
    Hold the input of the connection budget; None: not set.

    :param workers: workers of each host, int.
    :param hosts: hosts, int; None: ``auto``, they are counted.
    :param surge_hosts: additional hosts during a rolling deploy, int.
    :param postgres_pool_size: largest pool of a worker, int or None.
    :param pgbouncer_pool_size: connections of a pgbouncer for all hosts together, int or None.
    :param mongodb_max_connections: the server's limit, int or None.
    :param mongodb_max_pool_size: largest pool of a worker, int or None.
    """

    workers: int
    hosts: int | None
    surge_hosts: int
    postgres_pool_size: int | None
    pgbouncer_pool_size: int | None
    mongodb_max_connections: int | None
    mongodb_max_pool_size: int | None


def sizing() -> Sizing:
    """
    Return the input of the connection budget.

    :raises ConfigError: a value is not a number, or out of its range.
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
    """Return the URLs of Postgres and MongoDB; empty for one that is unset or ``off``."""
    url, uri = ("" if text == "off" else text for text in map(_text, (DATABASE_URL, MONGODB_URI)))
    return url, uri


def blocked_hub_s() -> float | None:
    """
    Return the seconds after which a blocked hub is logged, None for never.

    :raises ConfigError: the value is not a whole number of milliseconds.
    """
    return None if _text(BLOCKED_HUB_MS) == "0" else _count(BLOCKED_HUB_MS) / 1000


def logs_json() -> bool:
    """
    Return whether the access log is Greenline's JSON instead of gunicorn's format.

    :raises ConfigError: the value is neither ``json`` nor ``gunicorn``.
    """
    return _choice(ACCESS_LOG, "gunicorn", "json") == "json"


def requires_host() -> bool:
    """
    Return whether an HTTP/1.1 request without a valid Host header is refused.

    :raises ConfigError: the value is neither 0 nor 1.
    """
    return _choice(REQUIRE_HOST, "0", "1") == "1"


def offload() -> tuple[str, ...] | None:
    """
    Return the names of the additional calls that run in threads; None: no call does.

    :raises ConfigError: a name is neither ``mysqlclient`` nor ``package.module:function``.
    """
    text = _text(OFFLOAD)
    if text.lower() == "off":
        return None
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        # Not imported here: this also runs in the arbiter, which must not load the application.
        if name != "mysqlclient" and not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", name):
            raise ConfigError(
                f"{OFFLOAD.name}: {name!r} is neither mysqlclient nor package.module:function, "
                "nor off alone"
            )
    return names


def check() -> None:
    """
    Read every variable, so that an invalid one is reported before a worker starts.

    :raises ConfigError: a value is invalid; the text names the variable.
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
    Return the seconds during which a stopping service still accepts connections.

    :raises ConfigError: the value is not a number of seconds.
    """
    # 0, the default, is valid here only; _seconds requires a positive number.
    is_none = re.fullmatch(r"0+(\.0*)?", _text(DRAIN_DELAY))
    return 0.0 if is_none else _seconds(DRAIN_DELAY)


def proxy_keepalive_s() -> float | None:
    """
    Return the proxy's idle timeout in seconds, None if it is not set.

    :raises ConfigError: the value is not a number of seconds.
    """
    return _seconds(PROXY_KEEPALIVE) if _text(PROXY_KEEPALIVE) else None


def request_timeout_s() -> float | None:
    """
    Return the seconds that the application may take for a request, None for no limit.

    :raises ConfigError: the value is not a number of seconds.
    """
    return _seconds(REQUEST_TIMEOUT) if _text(REQUEST_TIMEOUT) else None


def is_set(variable: Variable) -> bool:
    """Return whether the environment sets the variable; a blank value does not count."""
    return bool(os.environ.get(variable.name, "").strip())


def _text(variable: Variable) -> str:
    # A blank value means the default: compose files pass unset variables as empty ones.
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
    # The comparison refuses "nan", too, and "inf".
    if not 0 < value <= MAX_SECONDS:
        raise ConfigError(
            f"{variable.name}: {text!r} is no number of seconds above 0, up to {MAX_SECONDS:.0f}"
        )
    return value


def _count(variable: Variable) -> int:
    text = _text(variable)
    # Stricter than int(), which accepts "1_000", a sign and digits of other scripts.
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"{variable.name}: {text!r} is no whole number above 0")
    return int(text)


def _optional_count(variable: Variable) -> int | None:
    return _count(variable) if _text(variable) else None
