"""All settings of the service, as one frozen record."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from config import env
from greenline.budget.cpu import default_workers

A_DAY_S = 86_400


@dataclass(frozen=True)
class Settings:
    """
    The settings that the README lists.

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
    ops_token: str | None = field(repr=False)


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """
    Read the settings.

    :param environ: the environment. Default ``os.environ``.
    :raises ConfigError: a variable is missing or wrong; the message names it.
    """
    mongodb_uri, mongodb_documentdb = load_mongodb(environ)
    return Settings(
        database_url=env.url(environ, "DATABASE_URL", ("postgresql", "postgres")),
        mongodb_uri=mongodb_uri,
        port=env.integer(environ, "PORT", 8000, least=1, most=65_535),
        workers=env.integer(environ, "WEB_CONCURRENCY", default_workers(), least=1, most=1_000),
        postgres_pool_size=env.optional_integer(
            environ, "POSTGRES_POOL_SIZE", least=1, most=100_000
        ),
        mongodb_max_pool_size=env.optional_integer(
            environ, "MONGODB_MAX_POOL_SIZE", least=1, most=100_000
        ),
        hosts=_hosts(environ),
        surge_hosts=env.integer(environ, "GREENLINE_SURGE_HOSTS", 1, least=0, most=10_000),
        pgbouncer_pool_size=env.optional_integer(
            environ, "PGBOUNCER_POOL_SIZE", least=1, most=100_000
        ),
        mongodb_max_connections=env.optional_integer(
            environ, "MONGODB_MAX_CONNECTIONS", least=1, most=10_000_000
        ),
        postgres_prepare=env.flag(environ, "POSTGRES_PREPARE", default=True),
        mongodb_documentdb=mongodb_documentdb,
        request_timeout_s=env.seconds(environ, "REQUEST_TIMEOUT", 30.0, most=A_DAY_S),
        pool_timeout_s=env.optional_seconds(environ, "POOL_TIMEOUT", most=A_DAY_S),
        pool_max_waiting=env.integer(environ, "POOL_MAX_WAITING", 1_000, least=0, most=1_000_000),
        diagnostics=env.flag(environ, "GREENLINE_DIAGNOSTICS"),
        log_level=env.choice(
            environ, "LOG_LEVEL", "info", ("debug", "info", "warning", "error", "critical")
        ),
        auth=env.choice(environ, "AUTH", "on", ("on", "off")) == "on",
        rate_limit=env.text(environ, "RATE_LIMIT", "") or None,
        rate_limit_storage=env.text(environ, "RATE_LIMIT_STORAGE", "") or None,
        cors_origins=env.origins(environ, "CORS_ORIGINS"),
        ops_token=env.text(environ, "OPS_TOKEN", "") or None,
    )


def load_mongodb(environ: Mapping[str, str] = os.environ) -> tuple[str | None, bool]:
    """
    Read the settings of MongoDB alone, for commands that use no other.

    :param environ: the environment. Default ``os.environ``.
    :returns: the URI, None for no MongoDB; and whether the server is Amazon DocumentDB.
    :raises ConfigError: a variable is missing or wrong; the message names it.
    """
    uri = env.url_or_off(environ, "MONGODB_URI", ("mongodb", "mongodb+srv"))
    return uri, env.flag(environ, "MONGODB_DOCUMENTDB")


def _hosts(environ: Mapping[str, str]) -> int | None:
    if env.text(environ, "GREENLINE_HOSTS", "1").lower() == "auto":
        return None
    return env.integer(environ, "GREENLINE_HOSTS", 1, least=1, most=10_000)
