"""
pymongo's options: which ones are ours, and that those in the URI win.

Every wait is finite, also outside a request. Inside one ``pymongo.timeout`` is the limit of all
of them together, and :mod:`greenline.mongo.driver` keeps each of them beneath it.
"""

import re
from typing import Any
from urllib.parse import urlsplit

Options = dict[str, Any]

# pymongo's default of 2 connects at a time makes a cold burst queue.
MAX_CONNECTING = 8
# As many as may connect at once: warming up takes the time of one connect, and the first burst
# after the start finds what it would otherwise begin with.
MIN_POOL_SIZE = MAX_CONNECTING

POOL: Options = {
    "connectTimeoutMS": 5_000,
    "serverSelectionTimeoutMS": 5_000,
    # Nothing waits for an answer longer than this, even outside a request.
    "socketTimeoutMS": 60_000,
    "maxConnecting": MAX_CONNECTING,
    # Under pymongo.timeout the driver repeats a read without a pause and without an end but the
    # deadline; greenline.mongo.retry does it with both.
    "retryReads": False,
}
# All below the 2 s that a health check may take, so that the driver's own reason is told.
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
# has to be switched off: it says itself that it has no streaming hello, its ends of sessions and
# its serverStatus may be refused without harm. Engines before 5.0 speak a protocol (wire
# version 7) that pymongo 4.20 has left behind, and are refused with its message.
DOCUMENTDB: Options = {"retryWrites": False}


def pool_options(size: int, queue_s: float, *, documentdb: bool = False) -> Options:
    """Return our options for a pool of *size*, whose waiting is bounded to *queue_s* seconds."""
    return {
        **POOL,
        **(DOCUMENTDB if documentdb else {}),
        "maxPoolSize": size,
        # pymongo takes 0 for no limit at all.
        "waitQueueTimeoutMS": max(int(queue_s * 1000), 1),
    }


def split(uri: str, ours: Options) -> tuple[Options, list[str]]:
    """Return those of *ours* that *uri* does not set, and the names of those that it does."""
    pairs = re.split("[&;]", urlsplit(uri).query)  # pymongo reads both
    given = {pair.partition("=")[0].lower() for pair in pairs}
    kept = {name: value for name, value in ours.items() if name.lower() not in given}
    return kept, sorted(ours.keys() - kept.keys())
