"""A WSGI application that uses SIGALRM as a time limit, as code for a process a request does."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from typing import Any


class TooLate(Exception):
    """The time is over."""


def too_late(number: int, frame: Any) -> None:
    """Handle SIGALRM."""
    raise TooLate


signal.signal(signal.SIGALRM, too_late)


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer with the process's id."""
    path = environ["PATH_INFO"]
    if path == "/handler":
        signal.signal(signal.SIGALRM, too_late)
    if path in ("/handler", "/alarm"):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    if path in ("/handler", "/alarm", "/wait"):
        time.sleep(1.0)
    if path == "/child":
        # The child sets the default handlers, in this greenlet.
        subprocess.run(["true"], check=True, restore_signals=True)
    body = str(os.getpid()).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
