"""
Django's PostgreSQL backend, whose connections are checkouts from a pool within the host's budget.

It does what ``GREENLINE_POOL=1`` does for Django's own backend, for one entry of ``DATABASES``. The
time zone and a statement timeout are part of the connect, so that a checkout needs no statement.
What CONN_MAX_AGE keeps is tested at each request as with CONN_HEALTH_CHECKS, without a statement.
"""

from types import SimpleNamespace
from typing import Any

import psycopg2
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql import base
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from greenline import settings
from greenline.postgres.handle import Handle, is_usable
from greenline.postgres.transparent import pooled_connect

if is_psycopg3:
    raise ImproperlyConfigured(
        "greenline.django.postgresql needs psycopg2; Django prefers psycopg, which is installed"
    )


class DatabaseWrapper(base.DatabaseWrapper):  # type: ignore[misc]
    """The backend: in a process that is not patched, as in management commands, Django's own."""

    Database = SimpleNamespace(**{**vars(psycopg2), "connect": pooled_connect})

    def connect(self) -> None:
        """Connect; from the next request on the connection is tested first."""
        super().connect()
        self.health_check_enabled = True

    def is_usable(self) -> bool:
        """Return whether the server has not ended the connection; no statement is sent."""
        conn = self.connection
        return is_usable(conn) if isinstance(conn, Handle) else bool(super().is_usable())

    def get_connection_params(self) -> dict[str, Any]:
        """
        Return what the connect is given: Django's, and the settings with which a session begins.

        ``REQUEST_TIMEOUT`` is the server's limit for a statement, too: a worker that is killed
        leaves none behind that runs longer.
        """
        params: dict[str, Any] = super().get_connection_params()
        if settings.PGBOUNCER_POOL_SIZE.read() is not None:  # it refuses options
            return params
        ours = {"TimeZone": self.timezone_name, "statement_timeout": _timeout_ms()}
        # Before those of the project, which are the later ones and so win.
        first = [f"-c {name}={value}" for name, value in ours.items() if value]
        params["options"] = " ".join([*first, params.get("options", "")]).strip()
        return params


def _timeout_ms() -> int | None:
    timeout_s = settings.REQUEST_TIMEOUT.read()
    return None if timeout_s is None else round(timeout_s * 1000)
