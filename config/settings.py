"""All settings of the service, as one frozen record."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from greenline.errors import ConfigError
from greenline.settings import (
    DATABASE_URL,
    MONGODB_URI,
    OFF,
    REQUEST_TIMEOUT,
    Variable,
    choice,
    flag,
    not_set,
    optional,
    seconds,
    sizing,
    whole,
)

REQUEST_TIMEOUT_S = 30.0  # unlike the runtime's REQUEST_TIMEOUT, the service's is never unlimited
ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")


def _origins(text: str) -> tuple[str, ...]:
    # A browser sends an origin without a path, in lower case: another form would never match.
    given = [one.strip() for one in text.split(",") if one.strip()]
    for one in given:
        if one != "*" and not ORIGIN.fullmatch(one):
            raise ConfigError(f"{one!r} is no origin like https://app.example:8443, nor *")
    return tuple(given)


PORT = Variable("PORT", whole(1, 65_535), "8000", "the port that the service listens on")
MONGODB_DOCUMENTDB = Variable("MONGODB_DOCUMENTDB", flag, "0", "1 for Amazon DocumentDB")
POSTGRES_PREPARE = Variable(
    "POSTGRES_PREPARE", flag, "1", "0 for a pgbouncer in transaction mode: no prepared statements"
)
POOL_TIMEOUT = Variable(
    "POOL_TIMEOUT",
    optional(seconds),
    "",
    "seconds to wait for a connection; unset: until the request's deadline",
)
POOL_MAX_WAITING = Variable(
    "POOL_MAX_WAITING",
    whole(0, 1_000_000),
    "1000",
    "requests of a worker that may wait for a Postgres connection",
)
DIAGNOSTICS = Variable("GREENLINE_DIAGNOSTICS", flag, "0", "1 adds `/diagnostics/sleep`")
LOG_LEVEL = Variable(
    "LOG_LEVEL",
    choice("debug", "info", "warning", "error", "critical"),
    "info",
    "the lowest level that is logged",
)
AUTH = Variable("AUTH", choice("on", OFF), "on", "`off` accepts requests without an API key")
RATE_LIMIT = Variable(
    "RATE_LIMIT", optional(str), "", "requests that a key may send, such as `100/minute`"
)
RATE_LIMIT_STORAGE = Variable(
    "RATE_LIMIT_STORAGE", optional(str), "", "URL of a store in which several hosts count together"
)
CORS_ORIGINS = Variable(
    "CORS_ORIGINS", _origins, "", "origins whose pages may read the responses; `*` is any"
)
CACHE_BYTES = Variable(
    "GREENLINE_CACHE_BYTES",
    whole(0, 2**40),
    "0",
    "memory in which each worker keeps what it has read (docs/cache.md); 0: none",
)
OPS_TOKEN = Variable(
    "OPS_TOKEN", optional(str), "", "the secret for `/ops/budget` and the reasons in `/readyz`"
)


@dataclass(frozen=True)
class Settings:
    """
    The settings that docs/settings.md lists.

    Seconds end in ``_s``. None means computed or unlimited where a comment says nothing else.
    """

    database_url: str
    mongodb_uri: str | None  # None: no MongoDB
    port: int
    workers: int
    postgres_pool_size: int | None
    mongodb_max_pool_size: int | None
    hosts: int | None  # None: GREENLINE_HOSTS=auto, the hosts are counted
    surge_hosts: int
    pgbouncer_pool_size: int | None
    mongodb_max_connections: int | None
    mongodb_documentdb: bool
    postgres_prepare: bool
    request_timeout_s: float
    pool_timeout_s: float | None
    pool_max_waiting: int
    diagnostics: bool
    log_level: str
    auth: bool
    rate_limit: str | None
    rate_limit_storage: str | None = field(repr=False)
    cors_origins: tuple[str, ...]
    cache_bytes: int  # 0: nothing is kept
    ops_token: str | None = field(repr=False)


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """
    Read the settings.

    :param environ: the environment. Default ``os.environ``.
    :raises ConfigError: a variable is missing or wrong; the message names it.
    """
    mongodb_uri, mongodb_documentdb = load_mongodb(environ)
    return Settings(
        database_url=_url(DATABASE_URL, environ, "postgresql", "postgres"),
        mongodb_uri=mongodb_uri,
        mongodb_documentdb=mongodb_documentdb,
        port=PORT.read(environ),
        **sizing(environ)._asdict(),
        postgres_prepare=POSTGRES_PREPARE.read(environ),
        request_timeout_s=REQUEST_TIMEOUT.read(environ) or REQUEST_TIMEOUT_S,
        pool_timeout_s=POOL_TIMEOUT.read(environ),
        pool_max_waiting=POOL_MAX_WAITING.read(environ),
        diagnostics=DIAGNOSTICS.read(environ),
        log_level=LOG_LEVEL.read(environ),
        auth=AUTH.read(environ) == "on",
        rate_limit=RATE_LIMIT.read(environ),
        rate_limit_storage=RATE_LIMIT_STORAGE.read(environ),
        cors_origins=CORS_ORIGINS.read(environ),
        cache_bytes=CACHE_BYTES.read(environ),
        ops_token=OPS_TOKEN.read(environ),
    )


def load_mongodb(environ: Mapping[str, str] = os.environ) -> tuple[str | None, bool]:
    """
    Read the settings of MongoDB alone, for commands that use no other.

    :param environ: the environment. Default ``os.environ``.
    :returns: the URI, None for no MongoDB; and whether the server is Amazon DocumentDB.
    :raises ConfigError: a variable is missing or wrong; the message names it.
    """
    is_off = MONGODB_URI.read(environ) == OFF
    uri = None if is_off else _url(MONGODB_URI, environ, "mongodb", "mongodb+srv")
    return uri, MONGODB_DOCUMENTDB.read(environ)


def _url(variable: Variable[str], environ: Mapping[str, str], *schemes: str) -> str:
    """Return the URL in a variable that the service requires."""
    url = variable.read(environ)
    with variable.named():
        if not url:
            raise ConfigError(not_set(variable.name))
        # The error does not show the value: a URL may contain a password.
        if not url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ConfigError(f"must begin with {' or '.join(f'{s}://' for s in schemes)}")
    return url
