"""Read the settings of the worker and the application from the environment."""

import re
from collections.abc import Mapping
from typing import Any

from greenline import settings
from greenline.deploy.facts import Service, Sourced
from greenline.errors import ConfigError

TIMEOUT_UNITS_S = {"us": 1e-6, "": 1e-3, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86_400}
STATEMENT_TIMEOUT = re.compile(r"statement_timeout\s*=\s*'?(\d+)\s*([a-z]*)")


def read(names: Mapping[str, Any], file: str) -> Service:
    """
    Return the settings of the service.

    :param names: the names that gunicorn.conf.py defines, with their values.
    :param file: the path of gunicorn.conf.py, str.
    :raises ConfigError: a value is not a number, or out of its range; DATABASE_URL is malformed.
    """
    request_timeout_s = settings.REQUEST_TIMEOUT.read()
    where = settings.REQUEST_TIMEOUT.name
    if request_timeout_s is None:
        # A gunicorn.conf.py may load the application's own settings, under this name.
        request_timeout_s = getattr(names.get("settings"), "request_timeout_s", None)
        where = file
    max_body, admission = settings.MAX_BODY_BYTES, settings.admission()
    return Service(
        request_timeout_s=_optional(request_timeout_s, where),
        drain_delay_s=Sourced(settings.DRAIN_DELAY.read(), settings.DRAIN_DELAY.name),
        proxy_keepalive_s=_optional(settings.PROXY_KEEPALIVE.read(), settings.PROXY_KEEPALIVE.name),
        max_body_bytes=Sourced(max_body.read(), max_body.name, max_body.is_set()),
        max_in_progress=admission.max_in_progress,
        max_waiting=admission.max_waiting,
        workers=Sourced(settings.WORKERS.read(), settings.WORKERS.name)
        if settings.WORKERS.is_set()
        else None,
        statement_timeout_s=_statement_timeout_s(settings.databases()[0]),
    )


def _optional(seconds: float | None, where: str) -> Sourced[float] | None:
    return None if seconds is None else Sourced(seconds, where)


def _statement_timeout_s(url: str) -> Sourced[float] | None:
    """Return the statement_timeout in the options of *url*, None if it is not set there."""
    if not url:
        return None
    try:
        from psycopg2.extensions import parse_dsn
    except ModuleNotFoundError:  # the application has another driver
        return None
    from greenline.postgres.connect import check_url

    variable = settings.DATABASE_URL.name
    try:
        options = parse_dsn(check_url(url)).get("options", "")
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}") from error
    found = STATEMENT_TIMEOUT.findall(options)
    # Postgres applies the last one.
    if not found or found[-1][1] not in TIMEOUT_UNITS_S:
        return None
    number, unit = found[-1]
    return Sourced(int(number) * TIMEOUT_UNITS_S[unit], variable)
