"""Note what slow requests wait for, with their statements and commands: ``GREENLINE_SLOW_MS``."""

from importlib import import_module

from greenline import settings
from greenline.hub import slow_waits
from greenline.offload.imports import after_import

SHOWN = 0.05  # the part of GREENLINE_SLOW_MS from which waits are shown


def hook_libraries() -> None:
    """Note waits from now on; the statements, once the application imports psycopg2 or pymongo."""
    slow_s = settings.slow_s()
    if slow_s is not None:
        slow_waits.min_s = slow_s * SHOWN
        hook_pymongo()
        after_import("psycopg2", lambda _: import_module("greenline.postgres.named").install())


def hook_pymongo() -> None:
    """Note the commands of pymongo; those of a MongoClient that was made before are not noted."""
    if settings.slow_s() is not None:
        after_import("pymongo", lambda _: import_module("greenline.mongo.named").install())
