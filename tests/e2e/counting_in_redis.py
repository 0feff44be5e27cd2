"""A WSGI application with redis-py's client, for the tests of the worker."""

import json
import os
from collections.abc import Iterable
from typing import Any

import redis

from greenline.telemetry import counters

# 100 is redis-py's own default from 8.0 on; before, a pool has no limit.
client = redis.Redis(port=int(os.environ.get("REDIS_PORT", "6379")), max_connections=100)


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Count in redis, or ``/wait/SECONDS`` there, and answer with what the count is."""
    path = environ["PATH_INFO"]
    if path == "/readyz":
        value = counters.totals().get(("limiter", "limit"), 0)
    elif path.startswith("/wait/"):
        value = client.blpop(["empty"], timeout=float(path.removeprefix("/wait/")))
    else:
        client.incr("count")
        value = int(client.get("count") or 0)
    body = json.dumps(value).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
