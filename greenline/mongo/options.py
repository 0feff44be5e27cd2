"""
Hold Greenline's options of pymongo; the URI's options override them.

Every wait is finite, also outside a request. Inside a request ``pymongo.timeout`` limits the sum
of the waits, and :mod:`greenline.mongo.driver` limits each of them.
"""

import re
from typing import Any
from urllib.parse import urlsplit

Options = dict[str, Any]

# pymongo's default of 2 connects at a time makes a cold burst queue.
MAX_CONNECTING = 8
# The number that may connect at once, so that warming up takes the time of one connect.
MIN_POOL_SIZE = MAX_CONNECTING

POOL: Options = {
    "connectTimeoutMS": 5_000,
    "serverSelectionTimeoutMS": 5_000,
    # The longest wait for an answer, also outside a request.
    "socketTimeoutMS": 60_000,
    "maxConnecting": MAX_CONNECTING,
    # Under pymongo.timeout the driver repeats a read without pauses until the deadline;
    # greenline.mongo.retry makes pauses and limits the attempts.
    "retryReads": False,
}
# All below the 2 s limit of a health check, so that the driver's own error is reported.
READINESS_S = 1.5
READINESS: Options = {
    "maxPoolSize": 1,
    "minPoolSize": 0,
    "connectTimeoutMS": 1_500,
    "serverSelectionTimeoutMS": 1_500,
    "socketTimeoutMS": 1_500,
    "waitQueueTimeoutMS": 1_500,
}
# Amazon DocumentDB refuses retryable writes before engine version 8.0.2 (error 301). Nothing else
# needs an option: the server announces that it has no streaming hello, and a refused endSessions
# or serverStatus does no harm. Engines before 5.0 speak wire version 7, which pymongo 4.20 no
# longer supports: its message is reported.
DOCUMENTDB: Options = {"retryWrites": False}


def pool_options(size: int, queue_s: float, *, documentdb: bool = False) -> Options:
    """
    Return Greenline's options for a pool.

    :param size: maxPoolSize, int.
    :param queue_s: seconds to wait for a connection, float.
    :param documentdb: the server is an Amazon DocumentDB, bool, default False.
    """
    return {
        **POOL,
        **(DOCUMENTDB if documentdb else {}),
        "maxPoolSize": size,
        # 0 means no limit to pymongo.
        "waitQueueTimeoutMS": max(int(queue_s * 1000), 1),
    }


def split(uri: str, ours: Options) -> tuple[Options, list[str]]:
    """
    Split options by whether a URI sets them.

    :param uri: a MongoDB URI, str.
    :param ours: Greenline's options.
    :returns: the options that *uri* does not set, and the sorted names of those that it sets.
    """
    pairs = re.split("[&;]", urlsplit(uri).query)  # pymongo accepts both separators
    # Option names in a URI are case-insensitive.
    given = {pair.partition("=")[0].lower() for pair in pairs}
    kept = {name: value for name, value in ours.items() if name.lower() not in given}
    return kept, sorted(ours.keys() - kept.keys())
