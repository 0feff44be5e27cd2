"""Connect through libpq, and retry where the server's backlog is full."""

import errno
import os
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

import psycopg2

from greenline.hub.backoff import Backoff
from greenline.postgres.psycopg2_compat import psycopg2_connect

BACKLOG_PAUSE_S, MAX_BACKLOG_PAUSE_S = 0.002, 0.05


def connect(dsn: str, connection_factory: Callable[[str], Any], until_s: float = inf) -> Any:
    """
    Return a new connection; retry while the backlog of a unix socket is full.

    A connect that does not block, as every one in green mode, gets EAGAIN there, where a blocking
    one would wait.

    :param dsn: the connection string.
    :param connection_factory: returns a connection for the connection string.
    :param until_s: the ``time.monotonic()`` of the last attempt, float. Default: no limit.
    :raises psycopg2.OperationalError: the connect failed, or the backlog stayed full.
    :raises DeadlineExceeded: the request's deadline has passed.
    """
    backoff = None  # made where it is needed
    while True:
        try:
            return psycopg2_connect(dsn, connection_factory=connection_factory)
        except psycopg2.OperationalError as error:
            # Neither psycopg2 nor libpq keeps the errno, so the text is compared.
            if os.strerror(errno.EAGAIN) not in str(error) or monotonic() >= until_s:
                raise
        backoff = backoff or Backoff(BACKLOG_PAUSE_S, MAX_BACKLOG_PAUSE_S)
        backoff.wait()
