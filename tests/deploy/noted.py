"""
The service, which notes each request that has a number before it is worked on, and who works on it.

It takes NOTED_SLEEP seconds for each, half of them before the work and half of them after it, and
holds all of them for as long as the file HOLD is there.
"""

import os
import time
from collections.abc import Iterable
from typing import Any

from app.wsgi import app

SLEEP_S = float(os.environ.get("NOTED_SLEEP", "0")) / 2
service = app.wsgi_app


def noted(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Note the number, and have the service answer."""
    number = environ["QUERY_STRING"]
    if not number.isdigit():
        return service(environ, start_response)
    _note(f"{environ['REQUEST_METHOD']} {number} {os.getpid()}\n".encode())
    time.sleep(SLEEP_S)
    while os.path.exists(os.environ["HOLD"]):
        time.sleep(0.02)
    answer = service(environ, start_response)
    time.sleep(SLEEP_S)
    return answer


def _note(line: bytes) -> None:
    notes = os.open(os.environ["NOTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(notes, line)
    os.close(notes)


app.wsgi_app = noted  # type: ignore[method-assign]
