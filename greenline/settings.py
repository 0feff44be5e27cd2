"""
Define the environment variables: a record of each, and the parsers that the records use.

No other module of the runtime reads these variables. ``config`` defines those of the service with
the same parsers, so that one text has one meaning.

Internal: applications import nothing from here. The service defines its settings with it.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf, nan
from typing import Any, Generic, NamedTuple, TypeVar

from greenline.budget.cgroup import default_workers
from greenline.errors import ConfigError

MAX_SECONDS = 86_400.0
MAX_WHOLE = 10**100 - 1
MAX_PATH_BYTES = 107  # of a unix socket, on Linux
OFF = "off"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Variable(Generic[T_co]):
    """
    Define an environment variable.

    :param name: its name, str.
    :param parse: converts the text to the value, a function; it knows the range, and raises
        ConfigError.
    :param default: the text that applies if it is unset or blank, str.
    :param meaning: one line of documentation, str.
    """

    name: str
    parse: Callable[[str], T_co]
    default: str
    meaning: str

    def read(self, environ: Mapping[str, str] = os.environ) -> T_co:
        """
        Return the value.

        :param environ: the environment. Default ``os.environ``.
        :raises ConfigError: the value is invalid; the text names the variable.
        """
        with self.named():
            # A blank value means the default: compose files pass unset variables as empty ones.
            return self.parse(environ.get(self.name, "").strip() or self.default)

    def is_set(self) -> bool:
        """Return whether the environment sets the variable; a blank value does not count."""
        return bool(os.environ.get(self.name, "").strip())

    @contextmanager
    def named(self) -> Iterator[None]:
        """
        Add the variable's name to a ConfigError that leaves the ``with`` block.

        :raises ConfigError: the block raised one.
        """
        try:
            yield
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error


def whole(min_: int, max_: int = MAX_WHOLE) -> Callable[[str], int]:
    """
    Return a parser of whole numbers.

    :param min_: the smallest allowed number, int.
    :param max_: the largest allowed number, int. Default: any of 100 digits.
    """

    def parse(text: str) -> int:
        # int() alone would accept "1_000", "+1" and digits of other scripts.
        if not re.fullmatch(r"[0-9]{1,100}", text) or not min_ <= int(text) <= max_:
            limit = f"of {min_} or more" if max_ == MAX_WHOLE else f"from {min_} to {max_}"
            raise ConfigError(f"{text!r} is not a whole number {limit}")
        return int(text)

    return parse


def seconds_or_0(text: str) -> float:
    """
    Parse a number of seconds in any form that float() accepts, such as ``2.5`` or ``1e3``.

    :raises ConfigError: it is not a number from 0 to a day.
    """
    try:
        value = float(text)
    except ValueError:
        value = nan
    # The comparison refuses "nan", too, and "inf".
    if not 0 <= value <= MAX_SECONDS:
        raise ConfigError(f"{text!r} is not a number of seconds from 0 to {MAX_SECONDS:.0f}")
    return value


def seconds(text: str) -> float:
    """
    Parse a number of seconds above 0, as :func:`seconds_or_0` does.

    :raises ConfigError: it is not a number, or out of its range.
    """
    value = seconds_or_0(text)
    if not value:
        raise ConfigError(f"{text!r} is not a number of seconds above 0")
    return value


def choice(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts *choices*, which are in lower case, in any case."""

    def parse(text: str) -> str:
        value = text.lower()
        if value not in choices:
            raise ConfigError(f"{text!r} is not one of {', '.join(choices)}")
        return value

    return parse


def flag(text: str) -> bool:
    """
    Parse 1 and 0.

    :raises ConfigError: it is neither.
    """
    return choice("0", "1")(text) == "1"


def none_if(word: str, parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """
    Return a parser that gives None for *word*.

    :param word: a text in lower case, accepted in any case.
    :param parse: the parser of all other texts.
    """
    return lambda text: None if text.lower() == word else parse(text)


def optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return a parser that gives None for a variable that is not set and has no default."""
    return none_if("", parse)


def _workers(text: str) -> int:
    return whole(1, 1_000)(text) if text else default_workers()


def _paths(text: str) -> tuple[str, ...]:
    # A trailing comma adds no empty path.
    return tuple(filter(None, map(str.strip, text.split(","))))


def _wait_callback(text: str) -> str:
    chosen = choice("greenline", "psycogreen")(text)
    # No extra of the package brings it, because nothing else needs it.
    if chosen == "psycogreen" and find_spec("psycogreen") is None:
        raise ConfigError("psycogreen is not installed: pip install psycogreen")
    return chosen


def _offload_names(text: str) -> tuple[str, ...]:
    # An older configuration may name mysqlclient, which runs in threads without a setting.
    names = tuple(
        name for each in text.split(",") if text and (name := each.strip()) != "mysqlclient"
    )
    for name in names:
        # Not imported here: this also runs in the arbiter, which must not load the application.
        if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", name):
            raise ConfigError(f"{name!r} is neither package.module:function, nor off alone")
    return names


class Bind(NamedTuple):
    """
    An address to listen on.

    :param host: of TCP, str; empty for a unix socket.
    :param port: of TCP, int; 0 for a unix socket.
    :param path: of a unix socket, str; empty for TCP.
    """

    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"


def _bind(text: str) -> Bind:
    if "/" in text:
        if len(text.encode()) > MAX_PATH_BYTES:
            raise ConfigError(f"{text!r} is longer than {MAX_PATH_BYTES} bytes, a socket's limit")
        return Bind("", 0, text)
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"\[[0-9a-fA-F:.]+\]|[\w.-]*", host):
        raise ConfigError(f"{text!r} is neither host:port nor the path of a unix socket")
    try:
        number = whole(1, 65_535)(port)
    except ConfigError as error:
        raise ConfigError(f"{text!r}: the port {error}") from error
    return Bind(host.strip("[]") or "127.0.0.1", number, "")


def _ops_bind(text: str) -> Bind:
    if find_spec("prometheus_client") is None:
        raise ConfigError("prometheus_client is not installed: pip install 'greenline[ops]'")
    return _bind(text)


def _log(text: str) -> str:
    chosen = choice("text", "json")(text)
    if chosen == "json" and find_spec("pythonjsonlogger") is None:
        raise ConfigError("python-json-logger is not installed: pip install 'greenline[log]'")
    return chosen


POOL = Variable(
    "GREENLINE_POOL",
    flag,
    "0",
    "1 pools the connections that the application makes by `psycopg2.connect` or `MongoClient`",
)
PG_WAIT = Variable(
    "GREENLINE_PG_WAIT",
    _wait_callback,
    "greenline",
    "psycopg2's wait callback, or `psycogreen`",
)
POOL_TAKE_OVER = Variable(
    "GREENLINE_POOL_TAKE_OVER",
    flag,
    "1",
    "0 leaves idle connections to the pools of the application that hold them",
)
HEAD_TIMEOUT = Variable(
    "GREENLINE_HEAD_TIMEOUT",
    seconds,
    "10",
    "seconds that the worker waits for the head of a request",
)
BODY_READ_TIMEOUT = Variable(
    "GREENLINE_BODY_READ_TIMEOUT",
    seconds,
    "15",
    "seconds that it waits for the next bytes of a body",
)
BODY_TIMEOUT = Variable(
    "GREENLINE_BODY_TIMEOUT",
    optional(seconds),
    "",
    "seconds that it waits for a body, all together; unset: no limit",
)
WRITE_TIMEOUT = Variable(
    "GREENLINE_WRITE_TIMEOUT",
    seconds,
    "30",
    "seconds in which a client takes 64 KiB of its answer",
)
MAX_BODY_BYTES = Variable(
    "GREENLINE_MAX_BODY_BYTES",
    optional(whole(1)),
    "",
    "a larger body is refused with 413; unset: no limit",
)
DRAIN_DELAY = Variable(
    "DRAIN_DELAY",
    seconds_or_0,
    "0",
    "seconds that a stopping service goes on accepting, not ready any more",
)
PROXY_KEEPALIVE = Variable(
    "GREENLINE_PROXY_KEEPALIVE",
    optional(seconds),
    "",
    "seconds after which the proxy gives up an idle connection; unset: gunicorn's `keepalive`",
)
MAX_IN_PROGRESS = Variable(
    "GREENLINE_MAX_IN_PROGRESS",
    none_if("auto", whole(1)),
    "auto",
    "requests that a worker works on at once; `auto` finds the number",
)
MAX_WAITING = Variable(
    "GREENLINE_MAX_WAITING",
    optional(whole(0)),
    "",
    "requests that may wait beyond those, or for their turn to compute; one more is a 503; unset: "
    "all, unless it is an overload",
)
MAX_WAIT = Variable(
    "GREENLINE_MAX_WAIT",
    optional(seconds),
    "",
    "seconds that one of them waits before it is a 503; unset: no limit but `REQUEST_TIMEOUT`",
)
HEALTH_PATHS = Variable(
    "GREENLINE_HEALTH_PATHS", _paths, "/healthz,/readyz", "paths that are never refused"
)
BLOCKED_HUB_MS = Variable(
    "GREENLINE_BLOCKED_HUB_MS",
    whole(0),
    "100",
    "a hub blocked for longer is logged with the stack; 0 is never",
)
SWITCH_INTERVAL_MS = Variable(
    "GREENLINE_SWITCH_INTERVAL_MS",
    whole(0),
    "5",
    "a request that has computed for four of these lets others run; 0 is never",
)
SLOW_MS = Variable(
    "GREENLINE_SLOW_MS",
    optional(whole(1)),
    "",
    "a request that takes longer is logged, with where its time went; unset: none",
)
LOG = Variable(
    "GREENLINE_LOG",
    _log,
    "text",
    "`json` for lines of JSON: access, errors, and the application's to standard output and error",
)
ACCESS_LOG = Variable(
    "GREENLINE_ACCESS_LOG",
    optional(choice("gunicorn", "json")),
    "",
    "`json` for Greenline's lines, `gunicorn` for gunicorn's settings; unset: as `GREENLINE_LOG`",
)
REQUIRE_HOST = Variable(
    "GREENLINE_REQUIRE_HOST",
    flag,
    "1",
    "0 accepts a request of HTTP/1.1 without a valid Host header",
)
OFFLOAD = Variable(
    "GREENLINE_OFFLOAD",
    none_if(OFF, _offload_names),
    "",
    "runs in threads, too: `package.module:function`; `off`: nothing does",
)
REQUEST_TIMEOUT = Variable(
    "REQUEST_TIMEOUT",
    optional(seconds),
    "",
    "seconds that the application may take for a request; then 504",
)
OPS_BIND = Variable(
    "GREENLINE_OPS_BIND",
    optional(_ops_bind),
    "",
    "`host:port`, or the path of a unix socket, where a page and `/metrics` are; unset: nowhere",
)
OPS_TOKEN = Variable(
    "GREENLINE_OPS_TOKEN",
    optional(str),
    "",
    "the token that a scraper or a browser has to send; unset: none",
)
FAST_FLASK = Variable(
    "GREENLINE_FAST_FLASK",
    flag,
    "0",
    "1 serves each `flask.Flask` of the application as `greenline.flask` does",
)
OF_WORKER: tuple[Variable[object], ...] = (
    PG_WAIT, POOL, POOL_TAKE_OVER,
    HEAD_TIMEOUT, BODY_READ_TIMEOUT, BODY_TIMEOUT, WRITE_TIMEOUT, MAX_BODY_BYTES,
    MAX_IN_PROGRESS, MAX_WAITING, MAX_WAIT, HEALTH_PATHS, DRAIN_DELAY, PROXY_KEEPALIVE,
    BLOCKED_HUB_MS, SWITCH_INTERVAL_MS, SLOW_MS, LOG, ACCESS_LOG, REQUIRE_HOST, OFFLOAD,
    REQUEST_TIMEOUT, OPS_BIND, OPS_TOKEN, FAST_FLASK,
)  # fmt: skip

# Read by postgres.open(), mongo.open() and the console script. An application of another kind may
# have variables of these names with a meaning of its own, so the worker does not check them.
DATABASE_URL = Variable("DATABASE_URL", str, "", "Postgres")
MONGODB_URI = Variable("MONGODB_URI", str, "", "MongoDB")
_EXAMPLES = {
    DATABASE_URL.name: "postgresql://user:password@host:5432/database",
    MONGODB_URI.name: "mongodb://host:27017/database",
}
WORKERS = Variable(
    "WEB_CONCURRENCY", _workers, "", "workers; unset: as many as the CPU limit, or 2"
)
HOSTS = Variable(
    "GREENLINE_HOSTS",
    none_if("auto", whole(1, 10_000)),
    "1",
    "hosts that share the databases; `auto` has them counted",
)
SURGE_HOSTS = Variable(
    "GREENLINE_SURGE_HOSTS", whole(0, 10_000), "1", "hosts more while a deploy rolls"
)
POSTGRES_POOL_SIZE = Variable(
    "POSTGRES_POOL_SIZE", optional(whole(1, 100_000)), "", "the largest pool of a worker"
)
PGBOUNCER_POOL_SIZE = Variable(
    "PGBOUNCER_POOL_SIZE",
    optional(whole(1, 100_000)),
    "",
    "connections that the pgbouncer in `DATABASE_URL` gives all hosts together",
)
MONGODB_MAX_POOL_SIZE = Variable(
    "MONGODB_MAX_POOL_SIZE", optional(whole(1, 100_000)), "", "the same for MongoDB"
)
MONGODB_MAX_CONNECTIONS = Variable(
    "MONGODB_MAX_CONNECTIONS",
    optional(whole(1, 10_000_000)),
    "",
    "connections that MongoDB allows, if the server does not report it",
)
VARIABLES: tuple[Variable[object], ...] = (
    *OF_WORKER, DATABASE_URL, MONGODB_URI, WORKERS, HOSTS, SURGE_HOSTS, POSTGRES_POOL_SIZE,
    PGBOUNCER_POOL_SIZE, MONGODB_MAX_POOL_SIZE, MONGODB_MAX_CONNECTIONS,
)  # fmt: skip


def check() -> None:
    """
    Read every variable of the worker, so that an invalid one is reported before a worker starts.

    :raises ConfigError: a value is invalid; the text names the variable.
    """
    for variable in OF_WORKER:
        variable.read()


class Limits(NamedTuple):
    """
    Limit the time and the bytes that a client may take.

    :param head_s: seconds for the head of a request, float.
    :param body_read_s: seconds for the next bytes of a body, float.
    :param body_s: seconds for a whole body, float; infinite: no limit.
    :param write_s: seconds in which a client reads 64 KiB of its answer, float.
    :param max_body_bytes: size of the largest accepted body, int; infinite: no limit.
    """

    head_s: float
    body_read_s: float
    body_s: float
    write_s: float
    max_body_bytes: float


def limits() -> Limits:
    """
    Return the limits of a client.

    :raises ConfigError: a value is not a number, or out of its range.
    """
    return Limits(
        head_s=HEAD_TIMEOUT.read(),
        body_read_s=BODY_READ_TIMEOUT.read(),
        body_s=BODY_TIMEOUT.read() or inf,
        write_s=WRITE_TIMEOUT.read(),
        max_body_bytes=MAX_BODY_BYTES.read() or inf,
    )


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
    return Admission(
        max_in_progress=MAX_IN_PROGRESS.read(),
        max_waiting=MAX_WAITING.read(),
        max_wait_s=MAX_WAIT.read(),
        timeout_s=REQUEST_TIMEOUT.read(),
        health_paths=HEALTH_PATHS.read(),
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


# By the fields of Sizing, each with the name of the argument of postgres.open() or mongo.open().
_SIZING: dict[str, tuple[Variable[int | None], str]] = {
    "workers": (WORKERS, "workers"),
    "hosts": (HOSTS, "hosts"),
    "surge_hosts": (SURGE_HOSTS, "surge_hosts"),
    "postgres_pool_size": (POSTGRES_POOL_SIZE, "max_size"),
    "pgbouncer_pool_size": (PGBOUNCER_POOL_SIZE, "pgbouncer_pool_size"),
    "mongodb_max_connections": (MONGODB_MAX_CONNECTIONS, "max_connections"),
    "mongodb_max_pool_size": (MONGODB_MAX_POOL_SIZE, "max_size"),
}


def sizing(environ: Mapping[str, str] = os.environ) -> Sizing:
    """
    Return the input of the connection budget.

    :param environ: the environment. Default ``os.environ``.
    :raises ConfigError: a value is not a number, or out of its range.
    """
    fields: dict[str, Any] = {
        field: variable.read(environ) for field, (variable, _) in _SIZING.items()
    }
    return Sizing(**fields)


def sizing_of(**given: int | str | None) -> Sizing:
    """
    Return the input of the connection budget from the arguments of a call.

    :param given: fields of :class:`Sizing` by name; None is read from the environment. A field
        that is not named is None: it does not count where two calls are compared.
    :raises ConfigError: a value is not a number, or out of its range; the text names the argument
        or the variable.
    """
    fields: dict[str, Any] = dict.fromkeys(Sizing._fields)
    for field, value in given.items():
        variable, argument = _SIZING[field]
        if value is None:
            fields[field] = variable.read()
            continue
        try:
            # By the variable's own parser: an argument and a variable have one range.
            fields[field] = variable.parse(str(value))
        except ConfigError as error:
            reason = str(error).removeprefix(repr(str(value)))
            raise ConfigError(f"{argument}: {value!r}{reason}") from None
    return Sizing(**fields)


def not_set(name: str) -> str:
    """
    Return the reason why a variable that is not set is refused, with an example if there is one.

    :param name: the variable's name, str.
    """
    return f"not set, for example {_EXAMPLES[name]}" if name in _EXAMPLES else "not set"


def databases() -> tuple[str, str]:
    """Return the URLs of Postgres and MongoDB; empty for one that is unset or ``off``."""
    url, uri = ("" if text == OFF else text for text in (DATABASE_URL.read(), MONGODB_URI.read()))
    return url, uri


def blocked_hub_s() -> float | None:
    """
    Return the seconds after which a blocked hub is logged, None for never.

    :raises ConfigError: the value is not a whole number of milliseconds.
    """
    return BLOCKED_HUB_MS.read() / 1000 or None


def slow_s() -> float | None:
    """
    Return the seconds after which a request is logged as slow, None for never.

    :raises ConfigError: the value is not a whole number of milliseconds.
    """
    slow_ms = SLOW_MS.read()
    return None if slow_ms is None else slow_ms / 1000


def logs_json() -> bool:
    """
    Return whether log lines are JSON.

    :raises ConfigError: the value is neither ``json`` nor ``text``.
    """
    return LOG.read() == "json"


def access_log_is_json() -> bool:
    """
    Return whether the access log is Greenline's JSON instead of gunicorn's format.

    :raises ConfigError: a value is invalid.
    """
    chosen = ACCESS_LOG.read()
    return logs_json() if chosen is None else chosen == "json"
