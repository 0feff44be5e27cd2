"""A WSGI application that waits, blocks, raises or returns the counters, by its path."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gevent.monkey import get_original

from greenline.telemetry import counters

LARGE_BYTES = 65_536_000  # more than the buffers between two processes take


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer what was counted so far; /hold waits until the file OPEN is there."""
    path = environ["PATH_INFO"]
    if path == "/hold":
        Path(os.environ["HELD"]).touch()
        while not Path(os.environ["OPEN"]).exists():
            time.sleep(0.01)
    if path == "/block":
        get_original("time", "sleep")(0.5)
    if path == "/raise":
        raise RuntimeError("on purpose")
    if path == "/body":
        environ["wsgi.input"].read()
    status = "504 Gateway Timeout" if path == "/late" else "200 OK"
    start_response(status, [("Content-Type", "application/json")])
    if path == "/raise-in-the-body":
        return broken()
    if path == "/large":
        return [bytes(LARGE_BYTES)]
    totals = {json.dumps(key): value for key, value in counters.totals().items()}
    return [json.dumps(totals).encode()]


def broken() -> Iterator[bytes]:
    """Raise before the first part."""
    raise RuntimeError("on purpose")
    yield b""
