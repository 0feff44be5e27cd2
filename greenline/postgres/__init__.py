"""
Postgres through psycopg2, green: pool, limits, errors.

:func:`open`, the :class:`OpenPostgres` that it returns, :class:`Connection`, ``ANNOUNCEMENTS`` and
:func:`pool_psycopg2` are the public face; the other modules are internal. The service imports
``connect``, ``errors``, ``limits`` and ``transaction``.
"""

from typing import TYPE_CHECKING

from greenline import lazy

if TYPE_CHECKING:
    from greenline.postgres.announcements import ANNOUNCEMENTS
    from greenline.postgres.connection import Connection
    from greenline.postgres.factory import OpenPostgres, open  # noqa: A004
    from greenline.postgres.transparent import pool_psycopg2

__all__ = ["ANNOUNCEMENTS", "Connection", "OpenPostgres", "open", "pool_psycopg2"]

# At the first use: the arbiter and the commands import modules of this package without it.
__getattr__ = lazy.attributes(
    __name__,
    {
        "ANNOUNCEMENTS": "announcements",
        "Connection": "connection",
        "OpenPostgres": "factory",
        "open": "factory",
        "pool_psycopg2": "transparent",
    },
    extra="postgres",
)
