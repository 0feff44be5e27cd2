"""Note the waits of slow requests, with their statements and commands: ``GREENLINE_SLOW_MS``."""

from greenline import settings
from greenline.hub import slow_waits
from greenline.offload.imports import after_import

NOTED = 0.05  # the part of GREENLINE_SLOW_MS from which a wait is noted


def hook_libraries() -> None:
    """Note waits from now on; the statements, once the application imports psycopg2 or pymongo."""
    slow_s = settings.slow_s()
    if slow_s is not None:
        slow_waits.min_s = slow_s * NOTED
        hook_pymongo()
        after_import("psycopg2", lambda _: _name_statements())


def hook_pymongo() -> None:
    """Name the commands of pymongo; those of a MongoClient that was made before have no name."""
    if settings.slow_s() is not None:
        after_import("pymongo", lambda _: _name_commands())


def _name_statements() -> None:
    from greenline.postgres import named

    named.install()


def _name_commands() -> None:
    from greenline.mongo import named

    named.install()
