"""A WSGI application that writes down each request it was asked, before it answers."""

import os
import time
from collections.abc import Iterable
from typing import Any

SLEEP_S = float(os.environ.get("COUNTING_SLEEP", "0.01"))


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Append the number to the file COUNTING, and sleep for a moment."""
    line = f"{environ['QUERY_STRING']} {os.getpid()}\n".encode()
    file = os.open(os.environ["COUNTING"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line)
    os.close(file)
    if environ["QUERY_STRING"] != "probe":
        time.sleep(SLEEP_S)
    body = b'{"pid": %d}' % os.getpid()
    head = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response("200 OK", head)
    return [body]
